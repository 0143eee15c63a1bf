//! Each connection has a span in the log, and what EXS logs about it is inside.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use exs::{Options, Socket, SocketType, Transport};
use exs_tests::harness::{Watchdog, stream_pair};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A span as the subscriber saw it.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    parent: Option<u64>,
    events: Vec<String>,
    references: usize,
}

impl Seen {
    fn has(&self, event: &str) -> bool {
        self.events.iter().any(|e| e.contains(event))
    }
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// All spans, by their number minus one.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Seen>>>);

thread_local! {
    /// The spans that the thread is in.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn current() -> Option<u64> {
    ENTERED.with_borrow(|spans| spans.last().copied())
}

impl Log {
    /// The log of this process.
    fn of_process() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            tracing::subscriber::set_global_default(log.clone()).unwrap();
            log
        })
    }

    fn spans(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap()
    }

    /// The span of the connection with this role and peer, once it is closed.
    fn closed(&self, role: &str, peer: &str) -> Seen {
        loop {
            let found = self
                .spans()
                .iter()
                .find(|s| {
                    s.name == "connection" && s.fields["role"] == role && s.fields["peer"] == peer
                })
                .cloned();
            match found {
                Some(span) if span.references == 0 => return span,
                _ => std::thread::yield_now(),
            }
        }
    }
}

fn at(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap() - 1
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("exs") || metadata.name() == "caller"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut seen = Seen { name: span.metadata().name(), references: 1, ..Seen::default() };
        span.record(&mut Fields(&mut seen.fields));
        seen.parent = match span.parent() {
            Some(parent) => Some(parent.into_u64()),
            None => current().filter(|_| span.is_contextual()),
        };
        let mut spans = self.spans();
        spans.push(seen);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Fields(&mut self.spans()[at(span)].fields));
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        if let Some(span) = current() {
            self.spans()[at(&Id::from_u64(span))].events.push(fields["message"].clone());
        }
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|spans| spans.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        let left = ENTERED.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(span.into_u64()));
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.spans()[at(span)].references += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut spans = self.spans();
        spans[at(&span)].references -= 1;
        spans[at(&span)].references == 0
    }
}

fn soft() -> Options {
    Options::default().with_transport(Transport::Soft)
}

#[test]
fn a_connection_has_a_span_from_connect_or_accept_to_close() {
    let _dog = Watchdog::new("spans");
    let log = Log::of_process();
    let caller = tracing::info_span!("caller");
    let (a, b) = caller.in_scope(|| stream_pair(&soft()));
    let (ours, theirs) = (a.local_addr().unwrap().to_string(), b.local_addr().unwrap().to_string());
    a.blocking().send_all(b"four").unwrap();
    b.blocking().recv_exact(&mut [0; 4]).unwrap();
    let close = std::thread::spawn(move || b.blocking().close().unwrap());
    a.blocking().close().unwrap();
    close.join().unwrap();
    let connected = log.closed("connect", &theirs);
    let accepted = log.closed("accept", &ours);
    assert_eq!(connected.parent, caller.id().map(|id| id.into_u64()));
    assert_eq!(accepted.parent, None, "any thread may have taken the request");
    for (span, local) in [(&connected, &ours), (&accepted, &theirs)] {
        assert_eq!(&span.fields["local"], local, "{span:?}");
        assert_eq!((&*span.fields["transport"], &*span.fields["device"]), ("soft", "soft"));
        assert_eq!(span.fields["socket"].split('.').count(), 3);
        assert!(span.has("the connection is established"), "{span:?}");
        assert!(span.has("the program closes"), "{span:?}");
        let usable = span.events.iter().filter(|e| e.contains("the connection can be used"));
        assert_eq!(usable.count(), 1, "{span:?}");
    }
    assert!(
        connected.has("READY goes to the peer") && accepted.has("READY has come"),
        "{connected:?} {accepted:?}"
    );
    assert!(
        connected.has("connecting to") && connected.has("ended after 4 bytes sent and 0 received"),
        "{connected:?}"
    );
    assert!(
        accepted.has("connects by soft") && accepted.has("ended after 0 bytes sent and 4 received"),
        "{accepted:?}"
    );
}

#[test]
fn a_connect_that_fails_has_its_reasons_in_its_span() {
    let _dog = Watchdog::new("spans of failures");
    let log = Log::of_process();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let socket = Socket::with_options(SocketType::Stream, soft()).unwrap();
    socket.blocking().connect(closed).unwrap_err();
    let span = log.closed("connect", &closed.to_string());
    assert!(span.has("not connected by soft") && span.has("the connect has failed"), "{span:?}");
    assert!(!span.fields.contains_key("local"));
}
