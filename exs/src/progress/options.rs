//! Options of sockets and queues, and the environment that sets their defaults.

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use super::Error;
use super::grouping::Grouping;
use super::path::PathOptions;
use super::shard_limits::MOST;
use super::shards::Shard;
use super::values::{parse_limit, parse_size, parse_switch, parse_time};
use crate::plain::KernelIo;

/// The transport that moves a socket's bytes. As text: `auto`, `soft`, `shm`, `verbs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// To connect: the RDMA device that leads to the peer, if an EXS peer answers there; otherwise
    /// shared memory, if the peer is on this host; otherwise the software RNIC. To listen: all of
    /// them.
    #[default]
    Auto,
    /// The software RNIC: iWARP over TCP in user space.
    Soft,
    /// RDMA devices only, through libibverbs (feature `verbs`).
    Verbs,
    /// Shared memory only, for peers in the same host and network namespace.
    Shm,
}

/// How a thread waits for events. As text: `busy`, `notify`, `adaptive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// Spin until an event comes: lowest latency, but one core is always busy.
    BusyPoll,
    /// Sleep at once: lowest use of the processor.
    Notify,
    /// Spin for up to 50 us where recent spins found events, then sleep.
    #[default]
    Adaptive,
}

/// Converts the values of an enum to text and back. The error lists all names.
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

/// Refuses an environment with a value that is invalid, so that a mistyped value does not silently
/// mean something else.
///
/// # Errors
/// [`Error::Invalid`] with the variable, its value, and the valid values.
pub(super) fn check_environment() -> Result<(), Error> {
    read("EXS_KERNEL_IO", KernelIo::from_str)?;
    read("EXS_WAIT", WaitPolicy::from_str)?;
    read("EXS_SHARDS", shards)?;
    super::stats::Offer::of_environment()?;
    Options::from_env().map(drop)
}

/// The processors that this process may run on.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// `EXS_SHARDS`, if it is set.
pub(super) fn shards_by_environment() -> Option<usize> {
    read("EXS_SHARDS", shards).ok().flatten()
}

/// The locked memory that a shard may have on an RDMA device: receives, and pools for copies.
#[cfg(feature = "verbs")]
const LOCKED_EACH: u64 = 8 << 20;

/// The most shards whose memory this process may lock, if there is a limit and the kernel has an RDMA
/// device.
#[cfg(feature = "verbs")]
pub(super) fn most_by_locked_memory() -> Option<usize> {
    let limit = crate::sys::memlock_limit().filter(|_| has_rdma_devices());
    limit.map(|bytes| usize::try_from(bytes / LOCKED_EACH).unwrap_or(MOST))
}

#[cfg(not(feature = "verbs"))]
pub(super) fn most_by_locked_memory() -> Option<usize> {
    None
}

/// True if the kernel has an RDMA device.
#[cfg(feature = "verbs")]
fn has_rdma_devices() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut dir| dir.next().is_some())
}

fn shards(text: &str) -> Result<usize, Error> {
    match text.trim().parse() {
        Ok(n) if (1..=MOST).contains(&n) => Ok(n),
        _ => Err(Error::invalid(format!("`{text}` is not a number of shards: from 1 to {MOST}"))),
    }
}

/// How kernel sockets wait: `EXS_KERNEL_IO`.
pub(super) fn kernel_io() -> KernelIo {
    read("EXS_KERNEL_IO", KernelIo::from_str).ok().flatten().unwrap_or_default()
}

/// The value of an environment variable. None: it is not set, or empty.
pub(super) fn read<T>(
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let Some(text) = std::env::var_os(name).filter(|t| !t.is_empty()) else { return Ok(None) };
    let value = match text.to_str() {
        Some(text) => parse(text),
        None => Err(Error::invalid(format!("{} is not UTF-8", text.display()))),
    };
    value.map(Some).map_err(|e| Error::invalid(format!("the environment variable {name}: {e}")))
}

/// What the environment says, which is read once. If a variable is invalid, the built-in values.
fn read_once<T: Clone>(
    read: &OnceLock<T>,
    from_env: impl FnOnce() -> Result<T, Error>,
    built_in: impl FnOnce() -> T,
) -> T {
    if let Some(before) = read.get() {
        return before.clone();
    }
    match from_env() {
        Ok(value) => read.get_or_init(|| value).clone(),
        Err(_) => built_in(),
    }
}

/// The options of an event queue. [`QueueOptions::new`] has the built-in values,
/// [`QueueOptions::from_env`] those of the environment, which are the default.
///
/// ```
/// use exs::{EventQueue, QueueOptions, WaitPolicy};
/// let options = QueueOptions::new().with_depth(64).with_wait(WaitPolicy::Notify);
/// let queue = EventQueue::with_options(&options)?;
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// The most operations in flight and events that wait, together. Beyond that, a post is refused
    /// with [`Error::WouldBlock`](super::Error::WouldBlock).
    pub depth: usize,
    /// How threads wait at the queue. `EXS_WAIT` = `busy`, `notify` or `adaptive` sets the default.
    pub wait: WaitPolicy,
    /// The shard of the queue: see [`EventQueue::shard`](crate::EventQueue::shard). None, the
    /// default: the shard of the first object that the program uses the queue with.
    pub shard: Option<Shard>,
}

impl Default for QueueOptions {
    /// As [`QueueOptions::from_env`] when the process first asks for them. An invalid variable counts as
    /// not set here, since the first queue then fails with an error that names it.
    fn default() -> QueueOptions {
        static READ: OnceLock<QueueOptions> = OnceLock::new();
        read_once(&READ, QueueOptions::from_env, QueueOptions::new)
    }
}

impl QueueOptions {
    /// The built-in values, without those of the environment.
    pub fn new() -> QueueOptions {
        QueueOptions { depth: 1024, wait: WaitPolicy::Adaptive, shard: None }
    }

    /// The built-in values, except for those that the environment sets.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a variable is invalid, with its name, its value and its grammar.
    pub fn from_env() -> Result<QueueOptions, Error> {
        let wait = read("EXS_WAIT", WaitPolicy::from_str)?.unwrap_or_default();
        Ok(QueueOptions::new().with_wait(wait))
    }
}

/// The options of a socket. The program sets them before `connect` or `listen`. An accepted socket
/// has those of its listener. [`Options::new`] has the built-in values. [`Options::from_env`] reads
/// the environment variable that is named with each field, and so does the first `Default` of the process.
/// [`parse_size`](crate::parse_size) reads sizes, and [`parse_time`](crate::parse_time) reads
/// times. `off` means none, where none is possible. An empty variable counts as not set. An invalid
/// variable is an error when EXS starts: the first call that makes a socket or a queue fails with
/// [`Error::Start`], which names it.
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
    /// Use only this RDMA device ("rxe0"). `EXS_DEVICE`. Default: any.
    pub device: Option<String>,
    /// The socket's connections share a protection domain only with connections of the same group.
    /// On some devices a key works in a whole domain (siw, most iWARP adapters). There, peers of
    /// other groups can do nothing with a key that is open to a peer of this group. An accepted
    /// socket belongs to the group of its listener. Each group in use takes its own receive slots
    /// on each device that it uses (2 MiB and more), and registers each `MemoryRegion` that it uses
    /// once more. `connect` and `listen` read this option. Default: none, which is the group of the
    /// process.
    pub trust_group: Option<String>,
    /// The bytes that a peer may send before the program posts receives. They go to the hidden ring
    /// of a stream, or to the store for small messages of a seqpacket socket. EXS allocates the
    /// memory only if it needs it. From 4 KiB to 1 GiB: a value outside becomes the nearest of
    /// these. `EXS_RING_SIZE`. Default: 1 MiB.
    pub ring_size: usize,
    /// Data up to this many bytes travel inside a message, without a WRITE of their own. At most 8
    /// KiB. `EXS_INLINE_THRESHOLD`. Default: 8 KiB for shared memory, 4 KiB for other transports.
    pub inline_threshold: Option<usize>,
    /// The longest message that a seqpacket socket takes. `EXS_MAX_MESSAGE`. Default: 1 GiB.
    pub max_message: u64,
    /// The time that a connect may take. On RDMA devices it counts from the last answer that the peer gave
    /// to a connect which began less than this time after this one. So the last connects of a burst do not fail
    /// while a busy host works on the others. `EXS_CONNECT_TIMEOUT`. Default: 30 s.
    pub connect_timeout: Duration,
    /// A send that has not left within this time ends with ETIMEDOUT and the number of bytes that
    /// have left. `EXS_SEND_TIMEOUT`. Default: none.
    pub send_timeout: Option<Duration>,
    /// A receive that has not ended within this time ends with ETIMEDOUT and the number of bytes
    /// that came. `EXS_RECV_TIMEOUT`. Default: none.
    pub recv_timeout: Option<Duration>,
    /// The time that `close`, a dropped socket and the exit of the process have to deliver the data
    /// that were sent. `EXS_LINGER`. Default: 10 s.
    pub linger: Duration,
    /// The interval at which EXS asks a silent peer for a sign of life. `EXS_KEEP_ALIVE`. Default:
    /// 15 s. `None`: never.
    pub keep_alive: Option<Duration>,
    /// A peer that gives no sign of life for this time is dead: every operation ends
    /// with ETIMEDOUT. `EXS_DEAD_AFTER`. Default: 60 s. `None`: wait for ever.
    pub dead_after: Option<Duration>,
    /// Send small data at once (TCP_NODELAY on the connection below). `EXS_NO_DELAY`. Default: on.
    pub no_delay: bool,
    /// Protect every FPDU by CRC32C. Either side can demand it. `EXS_CRC`. Default: off, since TCP
    /// and Ethernet have checksums of their own.
    pub crc: bool,
    /// Which connections to one address and port share a TCP connection over the software RNIC, as a
    /// link group (EXS extension). `EXS_LINK_GROUP`. Default: auto.
    pub link_group: Grouping,
    /// An IPv6 wildcard listener takes no IPv4 connections. Default: off.
    pub v6_only: bool,
    /// The path through the network: traffic class, retries, timers.
    pub path: PathOptions,
}

/// The most data that travel inside a message.
pub(super) const MOST_INLINE: usize = 8 << 10;
/// `inline_threshold` where it is not set, but for shared memory.
pub(super) const DEFAULT_INLINE: u32 = 4 << 10;

impl Default for Options {
    /// As [`Options::from_env`] when the process first asks for them. To read the variables again for each
    /// socket would take a tenth of the time of a connect. An invalid variable counts as not set here, since
    /// the first socket then fails with an error that names it.
    fn default() -> Options {
        static READ: OnceLock<Options> = OnceLock::new();
        read_once(&READ, Options::from_env, Options::new)
    }
}

impl Options {
    /// The built-in values, without those of the environment.
    pub fn new() -> Options {
        Options {
            transport: Transport::Auto,
            device: None,
            trust_group: None,
            ring_size: 1 << 20,
            inline_threshold: None,
            max_message: 1 << 30,
            connect_timeout: Duration::from_secs(30),
            send_timeout: None,
            recv_timeout: None,
            linger: Duration::from_secs(10),
            keep_alive: Some(Duration::from_secs(15)),
            dead_after: Some(Duration::from_secs(60)),
            no_delay: true,
            crc: false,
            link_group: Grouping::Auto,
            v6_only: false,
            path: PathOptions::new(),
        }
    }

    /// The built-in values, except for those that the environment sets.
    ///
    /// ```
    /// use exs::{Options, Transport};
    /// let options = Options::from_env()?.with_transport(Transport::Soft);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if a variable is invalid, with its name, its value and its grammar.
    pub fn from_env() -> Result<Options, Error> {
        fn set<T>(
            field: &mut T,
            name: &str,
            parse: impl FnOnce(&str) -> Result<T, Error>,
        ) -> Result<(), Error> {
            if let Some(value) = read(name, parse)? {
                *field = value;
            }
            Ok(())
        }
        let mut o = Options::new();
        set(&mut o.transport, "EXS_TRANSPORT", Transport::from_str)?;
        set(&mut o.device, "EXS_DEVICE", |name| Ok(Some(name.to_owned())))?;
        set(&mut o.ring_size, "EXS_RING_SIZE", bytes)?;
        set(&mut o.inline_threshold, "EXS_INLINE_THRESHOLD", |t| bytes(t).map(Some))?;
        set(&mut o.max_message, "EXS_MAX_MESSAGE", parse_size)?;
        set(&mut o.connect_timeout, "EXS_CONNECT_TIMEOUT", parse_time)?;
        set(&mut o.send_timeout, "EXS_SEND_TIMEOUT", parse_limit)?;
        set(&mut o.recv_timeout, "EXS_RECV_TIMEOUT", parse_limit)?;
        set(&mut o.linger, "EXS_LINGER", parse_time)?;
        set(&mut o.keep_alive, "EXS_KEEP_ALIVE", parse_limit)?;
        set(&mut o.dead_after, "EXS_DEAD_AFTER", parse_limit)?;
        set(&mut o.no_delay, "EXS_NO_DELAY", parse_switch)?;
        set(&mut o.crc, "EXS_CRC", parse_switch)?;
        set(&mut o.link_group, "EXS_LINK_GROUP", Grouping::from_str)?;
        o.path = PathOptions::from_env()?;
        Ok(o)
    }

    /// Refuses values that are out of range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.path.attr().map(drop)
    }

    /// The bytes of data that travel inside a message, on a connection by shared memory or by
    /// another transport. This is `inline_threshold`, if it is set.
    pub fn inline_by(&self, shared_memory: bool) -> usize {
        // Up to about these sizes, two copies cost less than an announcement and an ADVERT.
        let usual = if shared_memory { MOST_INLINE } else { DEFAULT_INLINE as usize };
        self.inline_threshold.unwrap_or(usual).min(MOST_INLINE)
    }
}

/// A `with_` method for each field. Programs cannot write these structs out, since they may get
/// more fields.
macro_rules! with {
    ($owner:ident: $($method:ident $field:ident: $ty:ty),+ $(,)?) => {
        impl $owner {
            #[cfg(test)]
            pub(super) const SETTERS: &[&str] = &[$(stringify!($method)),+];

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

pub(super) use with;

with!(
    QueueOptions:
    with_depth depth: usize,
    with_wait wait: WaitPolicy,
    with_shard shard: Option<Shard>,
);
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
    with_link_group link_group: Grouping,
    with_v6_only v6_only: bool,
    with_path path: PathOptions,
);

/// Reads a size of memory.
fn bytes(text: &str) -> Result<usize, Error> {
    // On 64-bit hosts every size fits.
    let size = usize::try_from(parse_size(text)?);
    size.map_err(|_| Error::invalid(format!("`{text}` is more than the memory of this host")))
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
    fn what_is_read_once_stays_unless_it_is_invalid() {
        let read = OnceLock::new();
        let invalid = || Err(Error::invalid("no number"));
        assert_eq!(read_once(&read, invalid, || 1), 1);
        assert_eq!(read_once(&read, || Ok(2), || 1), 2);
        assert_eq!(read_once(&read, || Ok(3), || 1), 2);
        assert_eq!(read_once(&read, invalid, || 1), 2);
    }

    #[test]
    fn the_inline_threshold_suits_the_transport_unless_it_is_set() {
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
        // The fields of the part stand beside those of the whole.
        let of_path = fields(format!("{:?}", PathOptions::default()));
        assert_eq!(of_path, PathOptions::SETTERS);
        let mut all = fields(format!("{:?}", Options::default()));
        all.truncate(all.len() - of_path.len());
        assert_eq!(all, Options::SETTERS);
        assert_eq!(fields(format!("{:?}", QueueOptions::default())), QueueOptions::SETTERS);
    }
}
