//! `exs_epoll_ctl` and `exs_epoll_wait`: epoll_ctl(2) and epoll_wait(2) for EXS sockets beside other
//! descriptors.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::arrivals::Arrivals;
use crate::connect::os;
use crate::epoll_set::EpollSet;
use crate::error::{Result, border};
use crate::event_loop::{InLoop, Rest};
use crate::pollable;
use crate::ptr::{In, Out};
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
            pollable::end_keeping(&entry);
        }
        Ok(0)
    })
}

fn control(epfd: c_int, op: c_int, fd: c_int, event: Option<libc::epoll_event>) -> Result<c_int> {
    let mut event = event.unwrap_or(libc::epoll_event { events: 0, u64: 0 });
    // SAFETY: an event that is alive for the call.
    os("epoll_ctl", unsafe { libc::epoll_ctl(epfd, op, fd, &raw mut event) })
}

/// `exs_epoll_wait`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_epoll_wait(
    epfd: c_int,
    events: Out<libc::epoll_event>,
    max: c_int,
    timeout: c_int,
) -> c_int {
    border(|| {
        if max > 0 {
            events.check()?;
        }
        let mut found = Found { epfd, events, max: usize::try_from(max).unwrap_or(0), len: 0 };
        let Some(set) = EpollSet::find(epfd).filter(|_| max > 0) else {
            return found.ask_kernel(timeout).map(|n| c_int::try_from(n).unwrap_or(max));
        };
        set.begin_loop();
        let in_loop = set.event_loop.enter();
        found.wait(&in_loop, set.event_loop.id().number(), Limit::new(timeout))?;
        Ok(c_int::try_from(found.len).unwrap_or(max))
    })
}

/// When a wait ends.
struct Limit {
    /// As epoll_wait(2) has it: milliseconds; -1: none.
    timeout: c_int,
    begun: Option<Instant>,
}

impl Limit {
    fn new(timeout: c_int) -> Limit {
        Limit { timeout, begun: (timeout > 0).then(Instant::now) }
    }

    /// The milliseconds that are left, rounded up.
    fn left(&self) -> c_int {
        let Some(begun) = self.begun else { return self.timeout };
        let all = Duration::from_millis(u64::try_from(self.timeout).unwrap_or(0));
        let left = all.saturating_sub(begun.elapsed());
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    }
}

/// The events of one call.
struct Found {
    epfd: c_int,
    events: Out<libc::epoll_event>,
    /// How many there is room for.
    max: usize,
    len: usize,
}

impl Found {
    /// Waits for events. `own`: the data of events that are for the library.
    fn wait(&mut self, in_loop: &InLoop<'_>, own: u64, limit: Limit) -> Result<()> {
        if in_loop.was_full() {
            // The kernel's events have their turn.
            let from_kernel = self.ask_kernel(0)?;
            self.merge(from_kernel, own)?;
            if self.len > 0 {
                return Ok(());
            }
        }
        // Whether the kernel was asked, and whether it said that a shard has something to do.
        let (mut asked, mut woken) = (false, false);
        loop {
            let rest = in_loop.drive(woken);
            self.take(in_loop, asked)?;
            if self.len > 0 && asked {
                // The kernel had nothing else a moment ago.
                return Ok(());
            }
            let sleeps = self.len == 0 && rest == Rest::Asleep;
            let left = if sleeps { limit.left() } else { 0 };
            let from_kernel = match self.ask_kernel(left) {
                Ok(n) => n,
                // What was found is returned, and the kernel's error comes again.
                Err(_) if self.len > 0 => 0,
                Err(e) => return Err(e),
            };
            woken = self.merge(from_kernel, own)?;
            // A turn also ends an announced sleep. Otherwise peers and other threads would go on to wake
            // this thread, and its sends would not wait for each other.
            let turn = woken || sleeps && in_loop.event_loop().drives_any();
            let over = match self.len {
                0 => sleeps && !woken || limit.left() == 0 && (asked || !woken),
                _ => !turn,
            };
            if over {
                return Ok(());
            }
            asked = sleeps || woken;
        }
    }

    /// Takes the sockets that the loop has found. A quarter of the room is for the kernel's events, unless
    /// they are there already (`asked`).
    fn take(&mut self, in_loop: &InLoop<'_>, asked: bool) -> Result<()> {
        let (known, kept) = (self.len, if asked { 0 } else { self.max / 4 });
        let mut stored = Ok(());
        in_loop.take(self.max - kept - known, |entry| {
            let (event, by_level) = Arrivals::event(entry)?;
            stored = self.put(event, known);
            stored.is_ok().then_some(by_level)
        });
        if self.len == self.max {
            in_loop.note_full();
        }
        stored
    }

    /// Adds an event, or joins it to one of the first `known` for the same socket.
    fn put(&mut self, event: libc::epoll_event, known: usize) -> Result<()> {
        let list = In::from(self.events);
        let is_same = |i: &usize| list.read_at(*i).is_ok_and(|other| other.u64 == event.u64);
        let same = (0..known).find(is_same);
        let (at, events) = match same {
            Some(i) => (i, list.read_at(i)?.events | event.events),
            None => (self.len, event.events),
        };
        self.events.write_at(at, libc::epoll_event { events, u64: event.u64 })?;
        self.len += usize::from(same.is_none());
        Ok(())
    }

    /// Asks the kernel for events behind those that are there. Returns how many it has stored.
    fn ask_kernel(&self, timeout: c_int) -> Result<usize> {
        let room = self.max - self.len;
        if room == 0 && self.len > 0 {
            return Ok(0);
        }
        let at = self.events.raw().wrapping_add(self.len);
        let room = c_int::try_from(room).unwrap_or(c_int::MAX);
        // SAFETY: the caller promises room for `max` events (see `ptr`), and `len` are taken. The
        // kernel checks the address.
        let n = os("epoll_wait", unsafe { libc::epoll_wait(self.epfd, at, room, timeout) })?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// Adds the kernel's events, which lie behind those that are there. An event for a socket that the
    /// loop has found, too, is joined to that. Returns true if there was one for the library.
    fn merge(&mut self, from_kernel: usize, own: u64) -> Result<bool> {
        let (known, mut woken) = (self.len, false);
        for at in known..known + from_kernel {
            let event = In::from(self.events).read_at(at)?;
            match event.u64 == own {
                true => woken = true,
                false => self.put(event, known)?,
            }
        }
        Ok(woken)
    }
}
