//! Figures of EXS connections in the form of TCP: TCP_MAXSEG and TCP_INFO.
//!
//! The library reports the state of a connection and the size of a segment. All other fields of `struct
//! tcp_info` are 0, because the library measures no retransmission, window or round trip. A *segment*
//! of EXS is the most data that travel in one message.

use exs::{Options, Transport, raw};

use crate::sockets::Entry;
use crate::told::Dialled;

/// States (tcp_states.h).
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// Size of `struct tcp_info` as it was in Linux 2.6 (all that programs may count on), and where
/// in it tcpi_snd_mss and tcpi_rcv_mss are.
const INFO: usize = 104;
const SND_MSS: usize = 16;
const RCV_MSS: usize = 20;

/// TCP_MAXSEG: of a socket without connection TCP's default (RFC 9293 section 3.7.1).
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

/// TCP_INFO.
pub(crate) fn info(entry: &Entry, options: &Options) -> Vec<u8> {
    let mut out = vec![0; INFO];
    out[0] = state(entry);
    let segment = u32::try_from(segment(entry, options)).unwrap_or(u32::MAX).to_ne_bytes();
    for at in [SND_MSS, RCV_MSS] {
        out[at..at + segment.len()].copy_from_slice(&segment);
    }
    out
}
