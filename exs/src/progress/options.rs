//! Options of sockets and queues, and the environment that sets their defaults.

use std::time::Duration;

/// Which road a socket's bytes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The best that reaches the peer. Today that is [`Transport::Soft`].
    #[default]
    Auto,
    /// The software RNIC: iWARP over TCP in user space.
    Soft,
}

/// How a thread waits for events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// How to make an event queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Operations that may be in flight or waiting to be dequeued together; a
    /// post beyond that is refused with [`Error::WouldBlock`](super::Error::WouldBlock).
    pub depth: usize,
    /// How to wait. `EXS_WAIT` = `busy`, `notify` or `adaptive` sets the default.
    pub wait: WaitPolicy,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        let wait = match env("EXS_WAIT").as_deref() {
            Some("busy") => WaitPolicy::BusyPoll,
            Some("notify") => WaitPolicy::Notify,
            _ => WaitPolicy::Adaptive,
        };
        QueueOptions { depth: 1024, wait }
    }
}

/// Options of a socket. Set before `connect` or `listen`; accepted sockets have
/// those of their listener. `Default` reads the environment variables named with
/// each field; a value that cannot be read is as if it were not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `EXS_TRANSPORT` = `auto` or `soft`. Default: auto.
    pub transport: Transport,
    /// Bytes that a peer may send ahead of our receives (the hidden ring of a
    /// stream, the store for small messages of a seqpacket socket). Memory is
    /// used only if needed. `EXS_RING_SIZE`. Default: 1 MiB.
    pub ring_size: usize,
    /// Data up to this many bytes travel inside of a message, not by a WRITE of
    /// their own. `EXS_INLINE`. Default: 2048.
    pub inline_threshold: usize,
    /// Longest message that a seqpacket socket takes. Default: 1 GiB.
    pub max_message: u64,
    /// Give up connecting after this. `EXS_CONNECT_TIMEOUT` (seconds). Default: 30 s.
    pub connect_timeout: Duration,
    /// A send that has not left by then ends with ETIMEDOUT and the bytes that
    /// did. `EXS_SEND_TIMEOUT`. Default: none.
    pub send_timeout: Option<Duration>,
    /// A receive that has not ended by then ends with ETIMEDOUT and the bytes that
    /// came. `EXS_RECV_TIMEOUT`. Default: none.
    pub recv_timeout: Option<Duration>,
    /// How long `close` (and a dropped socket) goes on delivering what was sent.
    /// `EXS_LINGER`. Default: 10 s.
    pub linger: Duration,
    /// Ask a silent peer for a sign of life this often. `EXS_KEEPALIVE`.
    /// Default: 15 s. `None`: never.
    pub keep_alive: Option<Duration>,
    /// A peer that gives no sign of life for so long is dead: every operation ends
    /// with ETIMEDOUT. `EXS_DEAD_AFTER`. Default: 60 s. `None`: wait for ever.
    pub dead_after: Option<Duration>,
    /// Send at once what is small (TCP_NODELAY underneath). Default: true.
    pub no_delay: bool,
    /// Protect every FPDU by CRC32C (either side may ask). `EXS_CRC` = 0 or 1.
    /// Default: false, as TCP and Ethernet have checksums of their own.
    pub crc: bool,
    /// An IPv6 wildcard listener takes no IPv4 connections. Default: false.
    pub v6_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            transport: match env("EXS_TRANSPORT").as_deref() {
                Some("soft") => Transport::Soft,
                _ => Transport::Auto,
            },
            ring_size: number("EXS_RING_SIZE").unwrap_or(1 << 20),
            inline_threshold: number("EXS_INLINE").unwrap_or(2048),
            max_message: 1 << 30,
            connect_timeout: seconds("EXS_CONNECT_TIMEOUT").unwrap_or(Duration::from_secs(30)),
            send_timeout: seconds("EXS_SEND_TIMEOUT"),
            recv_timeout: seconds("EXS_RECV_TIMEOUT"),
            linger: seconds("EXS_LINGER").unwrap_or(Duration::from_secs(10)),
            keep_alive: Some(seconds("EXS_KEEPALIVE").unwrap_or(Duration::from_secs(15))),
            dead_after: Some(seconds("EXS_DEAD_AFTER").unwrap_or(Duration::from_secs(60))),
            no_delay: true,
            crc: number("EXS_CRC").is_some_and(|n| n != 0),
            v6_only: false,
        }
    }
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|v| v.trim().to_ascii_lowercase())
}

/// A number, with an optional suffix k, m or g (of 1024).
fn number(name: &str) -> Option<usize> {
    parse_number(&env(name)?)
}

fn parse_number(text: &str) -> Option<usize> {
    let (digits, unit) = match text.char_indices().last()? {
        (i, 'k') => (&text[..i], 1 << 10),
        (i, 'm') => (&text[..i], 1 << 20),
        (i, 'g') => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

fn seconds(name: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(env(name)?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(parse_number("64k"), Some(65536));
        assert_eq!(parse_number("3"), Some(3));
        assert_eq!(parse_number("1g"), Some(1 << 30));
        for bad in ["", "k", "x", "-1", "99999999999g", "1é"] {
            assert_eq!(parse_number(bad), None, "{bad}");
        }
    }
}
