//! `exs_epoll_ctl`: epoll_ctl(2) with the arrival descriptors of EXS sockets.

use std::ffi::c_int;

use crate::arrivals::Arrivals;
use crate::connect::os;
use crate::error::{Result, border};
use crate::ptr::In;
use crate::sockets::{self, Target};

/// `exs_epoll_ctl`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: In<libc::epoll_event>,
) -> c_int {
    border(|| {
        let target = sockets::find(fd)?;
        // The kernel does not look at the event then.
        let asked = if op == libc::EPOLL_CTL_DEL { None } else { Some(event.read()?) };
        control(epfd, op, fd, asked)?;
        if let Target::Exs(entry) = target {
            match asked {
                Some(event) => Arrivals::watch(&entry, (epfd, fd), event),
                None => Arrivals::unwatch(&entry, (epfd, fd)),
            }
        }
        Ok(0)
    })
}

fn control(epfd: c_int, op: c_int, fd: c_int, event: Option<libc::epoll_event>) -> Result<c_int> {
    let mut event = event.unwrap_or(libc::epoll_event { events: 0, u64: 0 });
    // SAFETY: an event that is alive for the call.
    os("epoll_ctl", unsafe { libc::epoll_ctl(epfd, op, fd, &raw mut event) })
}
