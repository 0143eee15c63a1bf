//! Figures to tune with.

use crate::progress::{Error, Figures, figures_of_all_shards, first_shard};
use crate::session;
use crate::sys::system_calls;

/// What a socket, or the whole process, counted.
///
/// Much `indirect` with large transfers says that receives are posted too late;
/// many `credit_stalls` that the peer is slow to take messages; many `sleeps` per
/// operation that busy-polling would lower the latency.
///
/// ```
/// use exs::{EventQueue, RecvFlags, Token};
/// # use exs::Socket;
/// # let listener = Socket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::stream()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// # let (server, _) = listener.blocking().accept()?;
/// // A receive that is posted before its data come is filled directly.
/// let queue = EventQueue::new(4)?;
/// server.recv(&queue, Token(1), vec![0; 1 << 20], RecvFlags::WAITALL)?;
/// client.blocking().send_all(&vec![1; 1 << 20])?;
/// queue.next()?.into_result()?;
///
/// let counted = server.counters();
/// assert_eq!(counted.recvs, 1);
/// assert_eq!(
///     counted.received_direct + counted.received_indirect + counted.received_inline,
///     1 << 20,
/// );
/// assert!(exs::counters()?.events >= 1); // the whole process
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Sends that ended.
    pub sends: u64,
    /// Receives that ended.
    pub recvs: u64,
    /// RDMA READs and WRITEs of the program that ended.
    pub one_sided: u64,
    /// Bytes sent straight into receives that the peer had advertised (zero-copy).
    pub sent_direct: u64,
    /// Bytes sent into the peer's hidden ring.
    pub sent_indirect: u64,
    /// Bytes sent inside of messages.
    pub sent_inline: u64,
    /// Bytes that arrived straight in receives (zero-copy).
    pub received_direct: u64,
    /// Bytes that arrived in our hidden ring.
    pub received_indirect: u64,
    /// Bytes that arrived inside of messages.
    pub received_inline: u64,
    /// Bytes of RDMA READs.
    pub read_bytes: u64,
    /// Bytes of RDMA WRITEs.
    pub write_bytes: u64,
    /// Copies that the library made.
    pub copies: u64,
    /// Bytes that it copied.
    pub copied_bytes: u64,
    /// Receives advertised to the peer.
    pub adverts_sent: u64,
    /// Receives that the peer advertised.
    pub adverts_received: u64,
    /// Adverts withdrawn or overtaken before they were used.
    pub adverts_stale: u64,
    /// Times that something waited for the peer to take messages.
    pub credit_stalls: u64,
    /// Times that something waited for room in the send queue.
    pub queue_stalls: u64,
    /// Receives that EXS posted beyond the usual ones, as the peer was busy. Only where each
    /// connection has receives of its own: on devices without shared receive queues.
    pub receives_added: u64,
    /// Those of them that EXS took back, as the peer was idle.
    pub receives_dropped: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Process only: events delivered.
    pub events: u64,
    /// Process only: runs of the engine.
    pub engine_runs: u64,
    /// Process only: times that a thread slept because it had no work (wake-ups).
    pub sleeps: u64,
    /// Process only: system calls that moved data, waited or woke (also of kernel sockets). Not
    /// those of set-up, nor waits for locks, nor what the driver of an RDMA device calls.
    pub system_calls: u64,
    /// Process only: operations in flight now.
    pub in_flight: u64,
}

impl Counters {
    pub(super) fn of_socket(c: &session::Counters) -> Counters {
        Counters {
            sends: c.sends,
            recvs: c.recvs,
            one_sided: c.one_sided,
            sent_direct: c.tx_direct,
            sent_indirect: c.tx_indirect,
            sent_inline: c.tx_inline,
            received_direct: c.rx_direct,
            received_indirect: c.rx_indirect,
            received_inline: c.rx_inline,
            read_bytes: c.read_bytes,
            write_bytes: c.write_bytes,
            copies: c.copies,
            copied_bytes: c.copied_bytes,
            adverts_sent: c.adverts_sent,
            adverts_received: c.adverts_received,
            adverts_stale: c.adverts_stale,
            credit_stalls: c.credit_stalls,
            queue_stalls: c.queue_stalls,
            receives_added: c.receives_added,
            receives_dropped: c.receives_dropped,
            messages_sent: c.messages_sent,
            messages_received: c.messages_received,
            ..Counters::default()
        }
    }
}

/// Figures of the whole process, closed sockets included.
///
/// # Errors
/// The kernel's error if EXS cannot start.
pub fn counters() -> Result<Counters, Error> {
    first_shard()?;
    let Figures { counters, events, runs, sleeps, in_flight } = figures_of_all_shards();
    Ok(Counters {
        events,
        engine_runs: runs,
        sleeps,
        system_calls: system_calls(),
        in_flight,
        ..Counters::of_socket(&counters)
    })
}
