//! Jobs in io_uring: one thread for all of them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Inbox, Job};
use crate::sys::{EventFd, HeldSignals, IoRing};

enum Command {
    Start(u64, Job),
    CallOff(u64),
    Close,
}

struct RingShared {
    commands: Mutex<VecDeque<Command>>,
    bell: Arc<EventFd>,
}

/// The thread that has the ring.
pub(super) struct RingThread {
    shared: Arc<RingShared>,
}

impl RingThread {
    /// Starts it.
    ///
    /// # Errors
    /// The kernel's error if it has no io_uring, or forbids it to this process.
    pub(super) fn new(inbox: Arc<Inbox>) -> io::Result<RingThread> {
        let bell = Arc::new(EventFd::new()?);
        let ring = IoRing::new(Arc::clone(&bell))?;
        let shared = Arc::new(RingShared { commands: Mutex::default(), bell });
        let theirs = Arc::clone(&shared);
        // The thread inherits the mask: signals of the program are for its own threads.
        let _held = HeldSignals::new();
        std::thread::Builder::new()
            .name("exs-uring".into())
            .spawn(move || theirs.run(ring, &inbox))?;
        Ok(RingThread { shared })
    }

    pub(super) fn start(&self, number: u64, job: Job) {
        self.shared.tell(Command::Start(number, job));
    }

    pub(super) fn call_off(&self, number: u64) {
        self.shared.tell(Command::CallOff(number));
    }
}

impl Drop for RingThread {
    fn drop(&mut self) {
        self.shared.tell(Command::Close);
    }
}

impl RingShared {
    fn tell(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        self.bell.signal();
    }

    fn run(&self, mut ring: IoRing, inbox: &Inbox) {
        let mut replies = Vec::new();
        loop {
            // If it rings after this, `wait` returns.
            self.bell.drain();
            let commands =
                std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
            for command in commands {
                match command {
                    Command::Start(number, Job::Accept(fd)) => ring.accept(number, fd),
                    Command::Start(number, Job::Connect(fd, addr)) => {
                        ring.connect(number, fd, &addr);
                    }
                    Command::CallOff(number) => ring.cancel(number),
                    Command::Close => return,
                }
            }
            ring.wait(&mut replies);
            for (number, result) in replies.drain(..) {
                inbox.put(number, result);
            }
        }
    }
}
