//! An event loop for tests. The kernel reports each change of a descriptor to it once, as to tokio and mio.

use std::os::fd::AsRawFd;
use std::time::Duration;

/// An event loop that waits for one descriptor (EPOLLET).
pub(crate) struct EdgeLoop {
    poll: mio::Poll,
    told: mio::Events,
}

impl EdgeLoop {
    /// If the descriptor is readable already, the first question finds that.
    pub(crate) fn new(descriptor: &impl AsRawFd) -> EdgeLoop {
        let (poll, told) = (mio::Poll::new().unwrap(), mio::Events::with_capacity(8));
        let source = &mut mio::unix::SourceFd(&descriptor.as_raw_fd());
        poll.registry().register(source, mio::Token(0), mio::Interest::READABLE).unwrap();
        EdgeLoop { poll, told }
    }

    /// True if the descriptor became readable since the last call.
    pub(crate) fn was_told(&mut self) -> bool {
        self.ask(Some(Duration::ZERO))
    }

    /// Waits until the descriptor has become readable since the last call.
    pub(crate) fn wait(&mut self) {
        while !self.ask(None) {}
    }

    fn ask(&mut self, timeout: Option<Duration>) -> bool {
        self.poll.poll(&mut self.told, timeout).unwrap();
        !self.told.is_empty()
    }
}
