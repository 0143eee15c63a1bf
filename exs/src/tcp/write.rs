//! The gathered write of a link, and the errors of writes.

use std::io;

use crate::iwarp::{Gather, GatherChunk, MAX_CHUNKS};
use crate::sys::{self, IoVec, SharedStream};

pub(super) fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

/// The errno with which a connection broke. TCP has two for a reset: EPIPE once the peer has ended
/// its side (most likely its process was killed), ECONNRESET before. Which one appears depends on
/// whether our read or our write comes first. To the program they are the same.
pub(super) fn broken_errno(e: &io::Error) -> i32 {
    match errno(e) {
        libc::EPIPE => libc::ECONNRESET,
        errno => errno,
    }
}

/// One gathered write: its result, and the bytes that it was given.
pub(super) fn write_gathered(
    stream: &SharedStream,
    gather: &Gather<'_>,
) -> (io::Result<usize>, usize) {
    // Most small messages are one piece: they need no table of 2 KiB.
    let (mut one, mut many);
    let vecs: &mut [IoVec<'_>] = if gather.most() == 1 {
        one = [IoVec::EMPTY; 1];
        &mut one
    } else {
        many = [IoVec::EMPTY; MAX_CHUNKS];
        &mut many
    };
    let (mut count, mut len) = (0, 0);
    gather.for_each(&mut |chunk| {
        let Some(vec) = vecs.get_mut(count) else { return };
        *vec = match chunk {
            GatherChunk::Bytes(bytes) => IoVec::new(bytes),
            GatherChunk::Memory { seg, off, len } => seg.io_vec(off, len),
        };
        len += vec.len();
        count += 1;
    });
    let flags = sys::TcpSendFlags { more: gather.more, end_of_record: gather.alone };
    (sys::send(stream, &vecs[..count], flags), len)
}

/// True if the connection, and not memory or a file, is at fault for an error of a write.
pub(super) fn is_connection_error(e: &io::Error) -> bool {
    matches!(
        errno(e),
        libc::EPIPE
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ETIMEDOUT
            | libc::ENOTCONN
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ENOBUFS
    )
}
