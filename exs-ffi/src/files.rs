//! Sending files.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use exs::{Part, SocketType, Token};

use crate::abi::*;
use crate::blocking::{self, MOST, Patience, TOKEN, moved};
use crate::data::not_ours;
use crate::error::{Fail, Result, border};
use crate::event::Call;
use crate::ptr::{Bytes, In, Out};
use crate::sockets::{self, Target};
use crate::timeouts::{Way, posting};
use crate::{kernel, late, memory, options, queues, told};

/// Duplicates the program's file descriptor, so that the program may close its own after the
/// call.
fn file(fd: c_int) -> Result<File> {
    let st = sockets::stat(fd)?;
    if st.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Fail::fixed(libc::EINVAL, "exs_sendfile takes regular files"));
    }
    // SAFETY: takes no pointers.
    let mode = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if mode & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(Fail::fixed(libc::EBADF, "the file is not open for reading"));
    }
    // SAFETY: takes no pointers.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        return Err(Fail::os("dup of the file"));
    }
    // SAFETY: just made, with no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(own) }))
}

/// The bytes that one call can send.
struct Reach {
    left: u64,
    /// Some bytes are beyond it, and a later call must send them.
    clipped: bool,
}

impl Reach {
    /// With `clip`, for a call without a queue, the limit is `MOST`, because an int returns the
    /// number.
    fn new(clip: bool) -> Reach {
        Reach { left: if clip { MOST as u64 } else { u64::MAX }, clipped: false }
    }

    /// Takes the bytes of the next element that are within reach.
    fn take(&mut self, len: u64) -> u64 {
        let taken = len.min(self.left);
        self.clipped |= taken < len;
        self.left -= taken;
        taken
    }
}

/// Makes a part from a piece of a file. A length of 0 becomes the rest of the file.
fn file_part(f: &Fdvec, reach: &mut Reach) -> Result<Part> {
    let offset = u64::try_from(f.exs_fdv_offset)
        .map_err(|_| Fail::fixed(libc::EINVAL, "a piece of a file begins at 0 or later"))?;
    let file = file(f.exs_fdv_fd)?;
    let size = file.metadata().map_err(|e| Fail::io("fstat", &e))?.len();
    let len = match f.exs_fdv_length {
        0 => size.saturating_sub(offset),
        n => n,
    };
    if offset.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Fail::fixed(
            libc::EINVAL,
            "a piece of a file ends beyond the largest offset of a file",
        ));
    }
    Ok(Part::File { file: Arc::new(file), offset, len: reach.take(len) })
}

/// Makes parts from the elements, as far as the call reaches. Neighbouring memory is one part.
fn parts(elements: impl Iterator<Item = Xferfile>, reach: &mut Reach) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for e in elements {
        match e.exs_xf_type {
            EXS_FDVEC => {
                // SAFETY: the type says which member the caller has filled. Both are plain
                // numbers.
                let f = unsafe { e.exs_xf_union.exs_xf_fdvec };
                parts.push(file_part(&f, reach)?);
            }
            EXS_IOVEC => {
                // SAFETY: as above.
                let v = unsafe { e.exs_xf_union.exs_xf_iovec };
                memory::check(Bytes::of(&v), v.exs_iov_len, v.exs_iov_mhandle)?;
                let len = usize::try_from(reach.take(v.exs_iov_len as u64)).unwrap_or(usize::MAX);
                let buffer = memory::buffer(Bytes::of(&v), len, v.exs_iov_mhandle)?;
                match parts.last_mut() {
                    Some(Part::Memory(list)) => list.push(buffer),
                    _ => parts.push(Part::Memory(vec![buffer])),
                }
            }
            _ => {
                return Err(Fail::fixed(
                    libc::EINVAL,
                    "an element is an EXS_IOVEC or an EXS_FDVEC",
                ));
            }
        }
    }
    Ok(parts)
}

/// `exs_sendfile`
///
/// # Safety
/// As the header says: memory among the elements is the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_sendfile(
    fd: c_int,
    vec: Out<Xferfile>,
    count: c_int,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let target = sockets::find(fd)?;
        if flags & !EXS_SHUT_WR != 0 || count == 0 {
            let why = "exs_sendfile takes at least one element, and the flag EXS_SHUT_WR only";
            return Err(Fail::fixed(libc::EINVAL, why));
        }
        let list = In::from(vec).list(count, EXS_IOV_MAX)?;
        let mut reach = Reach::new(queue == EXS_QHANDLE_INVALID);
        let parts = parts(list, &mut reach)?;
        // The rest needs the direction: the call that sends the last byte ends it.
        let shut = flags & EXS_SHUT_WR != 0 && !reach.clipped;
        let call = Call::new(EXS_EVT_SENDFILE, fd);
        let entry = match target {
            Target::Exs(entry) => entry,
            Target::Kernel(_) => {
                let Some(answer) = kernel::Answer::of(call, queue, vec.name(), ahandle)? else {
                    return kernel::send_parts_now(fd, parts, shut);
                };
                return kernel::send_parts(fd, parts, shut, &answer);
            }
            Target::File => return not_ours(fd),
        };
        if reach.clipped {
            // A message cannot be cut.
            options::clip(&entry, MOST + 1)?;
        }
        let post = |q: &exs::EventQueue, token, parts| {
            posting(&entry, Way::Send, || Ok(entry.socket.send_parts(q, token, parts, shut)?))
        };
        if let Some(q) = queues::way(queue)? {
            let on = call.on(&q.queue, vec.name());
            post(&on, Token(ahandle as u64), parts)?;
            return Ok(0);
        }
        let patience = options::patience(&entry, fd, 0, Way::Send);
        if patience == Patience::None {
            if entry.kind == SocketType::SeqPacket && parts.len() > 1 {
                let why = "a message is memory, or one piece of a file";
                return Err(Fail::fixed(libc::EOPNOTSUPP, why));
            }
            let n = told::send(&entry, late::send(&entry, fd, &parts, shut))?;
            return Ok(c_int::try_from(n).unwrap_or(c_int::MAX));
        }
        let sent = blocking::run(&entry.socket, patience, |q| post(q, TOKEN, parts));
        told::send(&entry, sent.and_then(moved))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_one_call_are_noticed() {
        let most = MOST as u64;
        let mut reach = Reach::new(true);
        assert_eq!((reach.take(5), reach.clipped), (5, false));
        assert_eq!((reach.take(most - 5), reach.clipped), (most - 5, false));
        // Elements of no bytes leave nothing for a later call.
        assert_eq!((reach.take(0), reach.clipped), (0, false));
        assert_eq!((reach.take(1), reach.clipped), (0, true));
        assert_eq!((reach.take(0), reach.clipped), (0, true));
        let mut reach = Reach::new(true);
        assert_eq!((reach.take(most + 1), reach.clipped), (most, true));
        let mut reach = Reach::new(false);
        assert_eq!((reach.take(most + 1), reach.clipped), (most + 1, false));
    }
}
