//! The subcommands.

pub(crate) mod compare;
pub(crate) mod demo;
mod door;
pub(crate) mod get;
pub(crate) mod ls;
pub(crate) mod put;
pub(crate) mod receive;
pub(crate) mod serve;

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use exs::Host;

use crate::auth::Secret;
use crate::cli::{Client, Moving};
use crate::disk::relpath::RelPath;
use crate::error::CpError;
use crate::net::channel::Channel;
use crate::net::pipe::Via;
use crate::net::session::{Dialer, resolve, unexpected};
use crate::report::{Progress, Summary, tell};
use crate::transfer::tally::Tally;
use crate::wire::frame::{Flags, Frame};

/// Set by SIGINT and SIGTERM; every waiting thread looks at it.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, CpError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the process at once: journals list each chunk as it is written.
        let twice =
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop));
        twice
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|e| CpError::local("install the signal handler for", "SIGINT", e))?;
    }
    let _ = crate::report::STOP.set(Arc::clone(&stop));
    Ok(stop)
}

impl Client {
    pub(crate) fn dialer(&self, address: &str, stop: &Arc<AtomicBool>) -> Result<Dialer, CpError> {
        Ok(Dialer {
            host: Host::from_addresses(resolve(address)?),
            secret: self.token_file.as_deref().map(Secret::from_file).transpose()?,
            road: self.road.clone(),
            via: Arc::default(),
            stop: Arc::clone(stop),
        })
    }
}

impl Moving {
    pub(crate) fn flags(&self) -> Flags {
        Flags {
            verify: !self.no_verify,
            force: self.force,
            sync: !self.no_sync,
            quick: self.quick,
            compare: true,
            special: self.preserve_special,
        }
    }
}

/// The error of a command line whose address could not be used. If another word looks like an
/// address, the user has probably put it in the wrong place, and `order` says what is right.
pub(crate) fn misplaced(e: CpError, words: &[OsString], order: &str) -> CpError {
    let is_address = |word: &OsString| {
        let port = word.to_str().and_then(|w| w.rsplit_once(':')).map(|(_, port)| port);
        port.is_some_and(|port| port.parse::<u16>().is_ok()) && !Path::new(word).exists()
    };
    match e {
        CpError::Usage(why) if words.iter().any(is_address) => {
            CpError::Usage(format!("{why}. Is the order right? {order}"))
        }
        e => e,
    }
}

/// The names of all copies at the destination.
#[derive(Default)]
pub(crate) struct Names(HashSet<RelPath>);

impl Names {
    pub(crate) fn of(names: impl Iterator<Item = RelPath>) -> Names {
        Names(names.collect())
    }

    pub(crate) fn has(&self, name: &RelPath) -> bool {
        self.0.contains(name)
    }

    /// Two paths of one name would replace each other's files; `way_out` says what to do.
    pub(crate) fn add(&mut self, name: &RelPath, way_out: &str) -> Result<(), CpError> {
        if self.0.insert(name.clone()) {
            return Ok(());
        }
        Err(CpError::Usage(format!("two of the paths are called `{name}`; {way_out}")))
    }
}

/// Work for several connections, which may begin before all of it is known.
pub(crate) struct Queue<T> {
    work: Mutex<Work<T>>,
    changed: Condvar,
}

struct Work<T> {
    items: VecDeque<T>,
    /// No more will come.
    closed: bool,
}

impl<T> Queue<T> {
    /// All of it.
    pub(crate) fn of(items: impl IntoIterator<Item = T>) -> Queue<T> {
        Queue::with(items.into_iter().collect(), true)
    }

    /// Work will be put here, until it is closed.
    pub(crate) fn open() -> Queue<T> {
        Queue::with(VecDeque::new(), false)
    }

    fn with(items: VecDeque<T>, closed: bool) -> Queue<T> {
        Queue { work: Mutex::new(Work { items, closed }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Work<T>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: the queue is closed, and the item was dropped.
    pub(crate) fn put(&self, item: T) -> bool {
        let mut work = self.lock();
        let open = !work.closed;
        if open {
            work.items.push_back(item);
            // A thread waits only on an empty queue; a busy one looks here anyway.
            if work.items.len() == 1 {
                self.changed.notify_one();
            }
        }
        open
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// An item if there is one now; does not wait.
    pub(crate) fn take(&self) -> Option<T> {
        self.lock().items.pop_front()
    }

    /// Waits for an item. `None`: the queue is closed and empty.
    pub(crate) fn await_one(&self) -> Option<T> {
        let mut work = self.lock();
        loop {
            if let Some(item) = work.items.pop_front() {
                // There may be more for others that wait.
                if !work.items.is_empty() {
                    self.changed.notify_one();
                }
                return Some(item);
            }
            if work.closed {
                return None;
            }
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }
}

/// Runs `work` on each of `jobs` threads; the troubles of all are told, the
/// first of them is the result.
pub(crate) fn in_parallel(
    jobs: usize,
    tally: &Tally,
    work: impl Fn() -> Result<(), CpError> + Sync,
) -> Result<(), CpError> {
    let results: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..jobs).map(|_| s.spawn(&work)).collect();
        threads
            .into_iter()
            .map(|t| {
                t.join().unwrap_or_else(|_| Err(CpError::Protocol("a worker panicked".into())))
            })
            .collect()
    });
    let mut first = None;
    for e in results.into_iter().filter_map(Result::err) {
        match first {
            None => first = Some(e),
            Some(_) if matches!(e, CpError::Interrupted) => {}
            Some(_) => tally.problem(e.to_string()),
        }
    }
    first.map_or(Ok(()), Err)
}

/// Says that all is sent and waits for the other side to say the same.
pub(crate) fn say_bye(mut ch: Channel) -> Result<(), CpError> {
    ch.send(&Frame::Bye)?;
    match ch.frame()? {
        Frame::Bye => ch.close(),
        Frame::Refuse { text } => {
            Err(CpError::Refused { peer: ch.peer().to_owned(), reason: text })
        }
        other => Err(unexpected(&other)),
    }
}

/// Runs a transfer with progress, and ends it with the summary and the
/// exit status.
pub(crate) fn report(
    client: &Client,
    via: &Via,
    moving: &Moving,
    stop: &Arc<AtomicBool>,
    transfer: impl FnOnce(&Arc<Tally>) -> Result<(), CpError>,
) -> u8 {
    let tally = Arc::new(Tally::default());
    let progress = Progress::start(&tally, client.json);
    let start = Instant::now();
    let mut code = 0;
    if let Err(e) = transfer(&tally) {
        code = if stop.load(Ordering::Relaxed) { 130 } else { e.exit_code() };
        tally.problem(e.to_string());
    }
    let seconds = start.elapsed().as_secs_f64();
    progress.finish();
    if let Some(text) = tally.dropped_bits() {
        tell(&text);
    }
    let summary = Summary::new(&tally, seconds, Some(!moving.no_sync), via.names());
    for e in &summary.errors {
        tell(e);
    }
    summary.print(client.json);
    if code == 0 && !summary.errors.is_empty() { 1 } else { code }
}
