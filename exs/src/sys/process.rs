//! The memory of another process.

use std::io;

use super::{IoVecMut, note_calls};

/// Copies from `remote` (address and length of each piece) in another process to the
/// pieces in `local`, without any help of that process; returns the bytes copied, which
/// may be fewer where an address turned out not to be mapped.
///
/// # Errors
/// EPERM if the kernel does not let us (another user, Yama, a process that is not
/// dumpable), ENOSYS or EPERM in sandboxes, ESRCH if it is gone, EFAULT.
pub fn read_process(
    pid: i32,
    remote: &[(u64, u64)],
    local: &mut [IoVecMut<'_>],
) -> io::Result<usize> {
    const MAX: usize = 8;
    let mut theirs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX];
    if remote.len() > MAX || local.len() > 64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (iov, (addr, len)) in theirs.iter_mut().zip(remote) {
        let bad = |_| io::Error::from_raw_os_error(libc::EFAULT);
        let addr = usize::try_from(*addr).map_err(bad)?;
        iov.iov_base = std::ptr::without_provenance_mut(addr);
        iov.iov_len = usize::try_from(*len).map_err(bad)?;
    }
    note_calls(1);
    // SAFETY: `IoVecMut` is an iovec, and its bytes are its maker's to be written; the
    // addresses in the other process are the kernel's to check.
    let n = unsafe {
        libc::process_vm_readv(
            pid,
            local.as_mut_ptr().cast(),
            local.len() as libc::c_ulong,
            theirs.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_can_be_read_where_it_is_mapped() {
        let me = i32::try_from(std::process::id()).unwrap();
        let from = [7u8; 10];
        let mut to = [0; 10];
        let at = from.as_ptr() as u64;
        let (head, tail) = to.split_at_mut(3);
        let mut local = [IoVecMut::new(head), IoVecMut::new(tail)];
        match read_process(me, &[(at, 4), (at, 6)], &mut local) {
            Ok(n) => {
                assert_eq!(n, 10);
                assert_eq!(to, [7; 10]);
            }
            // A sandbox may forbid it.
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))),
        }
        assert!(read_process(me, &[(1, 4)], &mut [IoVecMut::new(&mut to)]).is_err());
    }
}
