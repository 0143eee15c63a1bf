//! Watches: the descriptors of an RNIC in its reactor, and which of them are ready.
//!
//! An edge of a descriptor is remembered until the RNIC takes it, at its next turn. Descriptors of a
//! device go when the device does. The watch on the events of the CM stays, since these concern
//! other devices too; and so does the watch on the device's node, which may go later.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::raw;

/// What an RNIC watches. The discriminant is the offset of its token from the RNIC's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchedFd {
    /// Events of the CM, for all devices of the host.
    Cm,
    /// Asynchronous events of the device.
    Async,
    /// Notifications of the device's CQs.
    Completions,
    /// The eventfd by which other threads wake this RNIC.
    Wake,
    /// The device's node in `/dev`.
    Node,
}

const ALL: [WatchedFd; 5] =
    [WatchedFd::Cm, WatchedFd::Async, WatchedFd::Completions, WatchedFd::Wake, WatchedFd::Node];

impl WatchedFd {
    /// True if it goes with the device.
    fn is_of_device(self) -> bool {
        !matches!(self, WatchedFd::Cm | WatchedFd::Node)
    }
}

/// See the module's essay.
pub(super) struct Watches {
    registry: mio::Registry,
    /// The first of the RNIC's tokens.
    base: usize,
    fds: Vec<(WatchedFd, OwnedFd)>,
    /// The edges that have not been taken, by [`WatchedFd`].
    ready: [bool; ALL.len()],
}

impl Watches {
    /// Watches nothing, in this reactor.
    ///
    /// # Errors
    /// Of dup(2).
    pub(super) fn new(registry: &mio::Registry, base: usize) -> io::Result<Watches> {
        let registry = registry.try_clone()?;
        Ok(Watches { registry, base, fds: Vec::new(), ready: [false; ALL.len()] })
    }

    /// Watches a descriptor, which must be open.
    ///
    /// # Errors
    /// Of dup(2) and epoll_ctl(2).
    pub(super) fn add(&mut self, what: WatchedFd, fd: i32) -> io::Result<()> {
        let fd = raw::duplicate(fd)?;
        raw::watch(&self.registry, &fd, self.base + what as usize)?;
        self.fds.push((what, fd));
        Ok(())
    }

    /// Remembers an edge that the reactor reports. Returns what is ready. None: the token is none of
    /// this RNIC's.
    pub(super) fn handle_ready(&mut self, token: usize) -> Option<WatchedFd> {
        let what = *ALL.get(token.wrapping_sub(self.base))?;
        self.note(what);
        Some(what)
    }

    /// Remembers an edge, as if the reactor had reported it.
    pub(super) fn note(&mut self, what: WatchedFd) {
        self.ready[what as usize] = true;
    }

    /// Takes an edge: true if there was one.
    pub(super) fn take(&mut self, what: WatchedFd) -> bool {
        std::mem::take(&mut self.ready[what as usize])
    }

    /// Takes the edges of the device's node, so that the next one is reported.
    pub(super) fn drain_node(&self) {
        for (_, fd) in self.fds.iter().filter(|(what, _)| *what == WatchedFd::Node) {
            raw::drain_watch(fd);
        }
    }

    /// Ends the watches that go with the device.
    pub(super) fn end_those_of_device(&mut self) {
        self.end(WatchedFd::is_of_device);
    }

    fn end(&mut self, which: impl Fn(WatchedFd) -> bool) {
        for (_, fd) in self.fds.extract_if(.., |(what, _)| which(*what)) {
            let fd = fd.as_raw_fd();
            // Other descriptors may refer to the same file: closing would not be enough. Fails only if the
            // reactor is gone.
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&fd));
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.end(|_| true);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::EventFd;

    /// The tokens that the reactor reports now.
    fn tokens(poll: &mut mio::Poll) -> Vec<usize> {
        let mut events = mio::Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        events.iter().map(|event| event.token().0).collect()
    }

    #[test]
    fn an_edge_is_kept_until_it_is_taken() {
        let mut poll = mio::Poll::new().unwrap();
        let mut watches = Watches::new(poll.registry(), 40).unwrap();
        let wake = EventFd::new().unwrap();
        watches.add(WatchedFd::Wake, wake.as_raw_fd()).unwrap();
        wake.signal();
        assert_eq!(tokens(&mut poll), [43]);
        assert_eq!(watches.handle_ready(43), Some(WatchedFd::Wake));
        assert!(!watches.take(WatchedFd::Node));
        assert_eq!([(); 2].map(|()| watches.take(WatchedFd::Wake)), [true, false]);
        for token in [0, 39, 45] {
            assert_eq!(watches.handle_ready(token), None, "{token} is not ours");
        }
    }

    #[test]
    fn the_watches_of_a_device_go_before_the_others() {
        let mut poll = mio::Poll::new().unwrap();
        let mut watches = Watches::new(poll.registry(), 0).unwrap();
        let fds = ALL.map(|what| (what, EventFd::new().unwrap()));
        for (what, fd) in &fds {
            watches.add(*what, fd.as_raw_fd()).unwrap();
        }
        let mut reported = |n| {
            // Again readable: each watch that is left reports another edge.
            fds.iter().for_each(|(_, fd)| fd.signal());
            let mut tokens = tokens(&mut poll);
            tokens.sort_unstable();
            assert_eq!(tokens.len(), n);
            tokens
        };
        assert_eq!(reported(5), [0, 1, 2, 3, 4]);
        watches.end_those_of_device();
        assert_eq!(reported(2), [WatchedFd::Cm as usize, WatchedFd::Node as usize]);
        drop(watches);
        assert_eq!(reported(0), []);
    }
}
