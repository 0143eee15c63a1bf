//! TCP_MAXSEG and TCP_INFO of an EXS connection.
//!
//! They report only what is true of an EXS connection: its state, and the size of a segment. All
//! other fields of `struct tcp_info` are 0, because there is no retransmission, no window, and no
//! round trip that the library measures. A *segment* of EXS is the most data that travel in one
//! message.

use exs::__ffi as raw;
use exs::{Options, Transport};

use crate::sockets::Entry;
use crate::told::Dialled;

/// States (tcp_states.h).
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// Size of `struct tcp_info` in Linux 2.6, which is all that programs may rely on, and the
/// offsets of tcpi_snd_mss and tcpi_rcv_mss in it.
const INFO: usize = 104;
const SND_MSS: usize = 16;
const RCV_MSS: usize = 20;

/// Returns TCP_MAXSEG. A socket without a connection has TCP's default (RFC 9293 section 3.7.1).
pub(crate) fn segment(entry: &Entry, options: &Options) -> usize {
    match entry.socket.transport() {
        Some(route) => options.inline_by(route.transport == Transport::Shm),
        None => 536,
    }
}

fn state(entry: &Entry) -> u8 {
    let s = &entry.socket;
    if s.is_listening() {
        LISTEN
    } else if entry.state().dialled == Dialled::Yet {
        SYN_SENT
    } else if s.peer_addr().is_ok() && raw::failure(s).is_none() {
        ESTABLISHED
    } else {
        CLOSE
    }
}

/// Returns TCP_INFO.
pub(crate) fn info(entry: &Entry, options: &Options) -> Vec<u8> {
    let mut out = vec![0; INFO];
    out[0] = state(entry);
    let segment = u32::try_from(segment(entry, options)).unwrap_or(u32::MAX).to_ne_bytes();
    for at in [SND_MSS, RCV_MSS] {
        out[at..at + segment.len()].copy_from_slice(&segment);
    }
    out
}
