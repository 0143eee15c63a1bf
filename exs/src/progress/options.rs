//! Options of sockets and queues, and the environment that sets their defaults.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Error;
use crate::plain::KernelIo;

/// Which road a socket's bytes take. As text: `auto`, `soft`, `shm`, `verbs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// To connect: the RDMA device that the way to the peer goes by, if it has an
    /// EXS peer there; else shared memory, if the peer is on this host; else the
    /// software RNIC. To listen: all of them.
    #[default]
    Auto,
    /// The software RNIC: iWARP over TCP in user space.
    Soft,
    /// RDMA devices only, through libibverbs (feature `verbs`).
    Verbs,
    /// Shared memory only: peers of this host (and network namespace).
    Shm,
}

/// How a thread waits for events. As text: `busy`, `notify`, `adaptive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// Spin for as long as it takes: lowest latency, one core busy.
    BusyPoll,
    /// Sleep at once: lowest use of the processor.
    Notify,
    /// Spin for a moment where that has lately paid, then sleep.
    #[default]
    Adaptive,
}

/// Names of an enum's values: to text and back, with an error that lists them.
macro_rules! names {
    ($ty:ident: $($name:literal = $value:ident),+) => {
        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($ty::$value => $name,)+ })
            }
        }

        impl FromStr for $ty {
            type Err = Error;

            fn from_str(text: &str) -> Result<$ty, Error> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($name => Ok($ty::$value),)+
                    _ => Err(Error::invalid(format!(
                        concat!("`{}` is none of", $(" `", $name, "`"),+), text,
                    ))),
                }
            }
        }
    };
}

names!(Transport: "auto" = Auto, "soft" = Soft, "shm" = Shm, "verbs" = Verbs);
names!(KernelIo: "auto" = Auto, "uring" = Uring, "readiness" = Readiness);
names!(WaitPolicy: "busy" = BusyPoll, "notify" = Notify, "adaptive" = Adaptive);

/// Refuses an environment that asks for what there is not: a name that is mistyped
/// should not silently mean something else.
///
/// # Errors
/// [`Error::Invalid`] with the variable and its possible values.
pub(super) fn check_environment() -> Result<(), Error> {
    fn check<T: FromStr<Err = Error>>(name: &str) -> Result<(), Error> {
        let Ok(text) = std::env::var(name) else { return Ok(()) };
        text.parse::<T>().map(drop).map_err(|e| Error::invalid(format!("{name}: {e}")))
    }
    check::<Transport>("EXS_TRANSPORT")?;
    check::<KernelIo>("EXS_KERNEL_IO")?;
    check::<WaitPolicy>("EXS_WAIT")
}

/// How kernel sockets are to wait: `EXS_KERNEL_IO`.
pub(super) fn kernel_io() -> KernelIo {
    env("EXS_KERNEL_IO").and_then(|t| t.parse().ok()).unwrap_or_default()
}

/// How to make an event queue.
///
/// ```
/// use exs::{EventQueue, QueueOptions, WaitPolicy};
/// let options = QueueOptions::default().with_depth(64).with_wait(WaitPolicy::Notify);
/// let queue = EventQueue::with_options(&options)?;
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Operations that may be in flight or waiting to be dequeued together; a
    /// post beyond that is refused with [`Error::WouldBlock`](super::Error::WouldBlock).
    pub depth: usize,
    /// How to wait. `EXS_WAIT` = `busy`, `notify` or `adaptive` sets the default.
    pub wait: WaitPolicy,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        let wait = env("EXS_WAIT").and_then(|t| t.parse().ok()).unwrap_or_default();
        QueueOptions { depth: 1024, wait }
    }
}

/// Options of a socket. Set before `connect` or `listen`; accepted sockets have
/// those of their listener. `Default` reads the environment variable named with
/// each field (sizes take k, M, G; times are seconds or take ms; `off` is none where
/// none is possible); a value that cannot be read is as if it were not set, but for
/// `EXS_TRANSPORT`, whose mistyped value is an error when EXS starts.
///
/// ```
/// use exs::{Options, Socket, SocketType};
/// use std::time::Duration;
/// let options = Options::default()
///     .with_ring_size(4 << 20)
///     .with_recv_timeout(Some(Duration::from_secs(5)));
/// let socket = Socket::with_options(SocketType::Stream, options)?;
/// assert_eq!(socket.options().ring_size, 4 << 20);
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// `EXS_TRANSPORT` = `auto`, `soft`, `shm` or `verbs`. Default: auto.
    pub transport: Transport,
    /// Of the RDMA devices, use this one only ("rxe0"). `EXS_DEVICE`. Default: all.
    pub device: Option<String>,
    /// The socket's connections share a protection domain with those of the same group
    /// alone, so that on devices whose keys serve a whole domain (siw, most iWARP adapters)
    /// peers of other groups can do nothing with a key that was opened to this one. An
    /// accepted socket belongs to the group of its listener. Each group in use takes
    /// receive slots of its own on each device that it uses (2 MiB and more), and
    /// registers each `MemoryRegion` that it uses once more. Looked at by `connect` and
    /// `listen`. Default: none, which is the group of the process.
    pub trust_group: Option<String>,
    /// Bytes that a peer may send ahead of our receives (the hidden ring of a
    /// stream, the store for small messages of a seqpacket socket). Memory is
    /// used only if needed. From 4 KiB to 1 GiB: what is outside is taken as the
    /// nearest of these. `EXS_RING_SIZE`. Default: 1 MiB.
    pub ring_size: usize,
    /// Data up to this many bytes travel inside of a message, not by a WRITE of
    /// their own; 8 KiB at most. `EXS_INLINE_THRESHOLD`. Default: what suits the
    /// transport, which is 8 KiB by shared memory and 4 KiB else.
    pub inline_threshold: Option<usize>,
    /// Longest message that a seqpacket socket takes. `EXS_MAX_MESSAGE`. Default:
    /// 1 GiB.
    pub max_message: u64,
    /// Give up connecting after this. `EXS_CONNECT_TIMEOUT`. Default: 30 s.
    pub connect_timeout: Duration,
    /// A send that has not left by then ends with ETIMEDOUT and the bytes that
    /// did. `EXS_SEND_TIMEOUT`. Default: none.
    pub send_timeout: Option<Duration>,
    /// A receive that has not ended by then ends with ETIMEDOUT and the bytes that
    /// came. `EXS_RECV_TIMEOUT`. Default: none.
    pub recv_timeout: Option<Duration>,
    /// How long `close` (and a dropped socket) goes on delivering what was sent, and the
    /// end of the process waits for that.
    /// `EXS_LINGER`. Default: 10 s.
    pub linger: Duration,
    /// Ask a silent peer for a sign of life this often. `EXS_KEEP_ALIVE`.
    /// Default: 15 s. `None`: never.
    pub keep_alive: Option<Duration>,
    /// A peer that gives no sign of life for so long is dead: every operation ends
    /// with ETIMEDOUT. `EXS_DEAD_AFTER`. Default: 60 s. `None`: wait for ever.
    pub dead_after: Option<Duration>,
    /// Send at once what is small (TCP_NODELAY underneath). `EXS_NO_DELAY`.
    /// Default: on.
    pub no_delay: bool,
    /// Protect every FPDU by CRC32C (either side may ask). `EXS_CRC`. Default: off,
    /// as TCP and Ethernet have checksums of their own.
    pub crc: bool,
    /// An IPv6 wildcard listener takes no IPv4 connections. Default: off.
    pub v6_only: bool,
}

/// The most that travels inside of a message.
pub(super) const MOST_INLINE: usize = 8 << 10;

impl Default for Options {
    fn default() -> Options {
        Options {
            transport: env("EXS_TRANSPORT").and_then(|t| t.parse().ok()).unwrap_or_default(),
            device: std::env::var("EXS_DEVICE").ok().filter(|name| !name.is_empty()),
            trust_group: None,
            ring_size: size("EXS_RING_SIZE", 1 << 20),
            inline_threshold: given_size("EXS_INLINE_THRESHOLD"),
            max_message: env("EXS_MAX_MESSAGE").and_then(|t| number(&t)).unwrap_or(1 << 30),
            connect_timeout: time("EXS_CONNECT_TIMEOUT", 30),
            send_timeout: limit("EXS_SEND_TIMEOUT", None),
            recv_timeout: limit("EXS_RECV_TIMEOUT", None),
            linger: time("EXS_LINGER", 10),
            keep_alive: limit("EXS_KEEP_ALIVE", Some(Duration::from_secs(15))),
            dead_after: limit("EXS_DEAD_AFTER", Some(Duration::from_secs(60))),
            no_delay: switch("EXS_NO_DELAY", true),
            crc: switch("EXS_CRC", false),
            v6_only: false,
        }
    }
}

impl Options {
    /// Bytes of data that travel inside of a message on a connection by shared memory, or by
    /// any other transport: `inline_threshold`, if it is set.
    pub fn inline_by(&self, shared_memory: bool) -> usize {
        // To copy twice costs less than an announcement and an ADVERT up to about here.
        let usual = if shared_memory { MOST_INLINE } else { 4 << 10 };
        self.inline_threshold.unwrap_or(usual).min(MOST_INLINE)
    }
}

/// A `with_` method for each field, for structs that programs cannot write out since they can grow.
macro_rules! with {
    ($owner:ident: $($method:ident $field:ident: $ty:ty),+ $(,)?) => {
        impl $owner {
            #[cfg(test)]
            const SETTERS: &[&str] = &[$(stringify!($method)),+];

            $(
                #[doc = concat!("The same with [`", stringify!($owner), "::", stringify!($field), "`] so.")]
                #[must_use]
                pub fn $method(self, $field: $ty) -> $owner {
                    $owner { $field, ..self }
                }
            )+
        }
    };
}

with!(QueueOptions: with_depth depth: usize, with_wait wait: WaitPolicy);
with!(
    Options:
    with_transport transport: Transport,
    with_device device: Option<String>,
    with_trust_group trust_group: Option<String>,
    with_ring_size ring_size: usize,
    with_inline_threshold inline_threshold: Option<usize>,
    with_max_message max_message: u64,
    with_connect_timeout connect_timeout: Duration,
    with_send_timeout send_timeout: Option<Duration>,
    with_recv_timeout recv_timeout: Option<Duration>,
    with_linger linger: Duration,
    with_keep_alive keep_alive: Option<Duration>,
    with_dead_after dead_after: Option<Duration>,
    with_no_delay no_delay: bool,
    with_crc crc: bool,
    with_v6_only v6_only: bool,
);

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|v| v.trim().to_ascii_lowercase())
}

/// A number, with an optional suffix k, m or g (of 1024).
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = split_unit(text);
    let unit = match unit {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Seconds, or with the suffix ms milliseconds.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = split_unit(text);
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        _ => return None,
    };
    Duration::try_from_secs_f64(digits.parse::<f64>().ok()? * scale).ok()
}

fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len()))
}

/// A size from the environment.
fn size(name: &str, default: usize) -> usize {
    given_size(name).unwrap_or(default)
}

/// The same, if there is one.
fn given_size(name: &str) -> Option<usize> {
    env(name).and_then(|t| usize::try_from(number(&t)?).ok())
}

/// A time limit from the environment; `off` is none.
fn limit(name: &str, default: Option<Duration>) -> Option<Duration> {
    match env(name).as_deref() {
        Some("off") => None,
        Some(text) => duration(text).or(default),
        None => default,
    }
}

/// A time from the environment.
fn time(name: &str, default: u64) -> Duration {
    env(name).and_then(|t| duration(&t)).unwrap_or(Duration::from_secs(default))
}

/// A switch from the environment.
fn switch(name: &str, default: bool) -> bool {
    match env(name).as_deref() {
        Some("1" | "on" | "true" | "yes") => true,
        Some("0" | "off" | "false" | "no") => false,
        _ => default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for t in [Transport::Auto, Transport::Soft, Transport::Shm, Transport::Verbs] {
            assert_eq!(t.to_string().parse::<Transport>().unwrap(), t);
        }
        for w in [WaitPolicy::BusyPoll, WaitPolicy::Notify, WaitPolicy::Adaptive] {
            assert_eq!(w.to_string().to_uppercase().parse::<WaitPolicy>().unwrap(), w);
        }
        let e = "infiniband".parse::<Transport>().unwrap_err();
        assert_eq!(e.to_string(), "`infiniband` is none of `auto` `soft` `shm` `verbs`");
        assert!("".parse::<WaitPolicy>().is_err());
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(number("64k"), Some(65536));
        assert_eq!(number("3"), Some(3));
        assert_eq!(number("1g"), Some(1 << 30));
        for bad in ["", "k", "x", "-1", "1kb", "99999999999999g", "1é"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_travels_inside_of_a_message_suits_the_transport_unless_it_is_set() {
        let with = |inline_threshold| Options { inline_threshold, ..Options::default() };
        assert_eq!([true, false].map(|memory| with(None).inline_by(memory)), [8192, 4096]);
        assert_eq!([0, 100, 1 << 20].map(|n| with(Some(n)).inline_by(true)), [0, 100, 8192]);
    }

    #[test]
    fn each_field_has_a_method_that_sets_it() {
        let fields = |text: String| -> Vec<String> {
            let names = text.split(' ').filter_map(|word| word.strip_suffix(':'));
            names.map(|name| format!("with_{name}")).collect()
        };
        assert_eq!(fields(format!("{:?}", Options::default())), Options::SETTERS);
        assert_eq!(fields(format!("{:?}", QueueOptions::default())), QueueOptions::SETTERS);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("20ms"), Some(Duration::from_millis(20)));
        assert_eq!(duration("3s"), Some(Duration::from_secs(3)));
        for bad in ["", "s", "-1", "1h", "nan", "1e400"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
