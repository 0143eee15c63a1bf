//! The jobs that operations of kernel sockets wait for.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;

use super::super::types::KernelIo;
use super::{CallOff, Helper, Job, JobResult};
use crate::sys;

/// The jobs, and the helper that carries them out.
pub(in crate::plain) struct Jobs {
    io: KernelIo,
    /// None before the first job.
    helper: Option<Helper>,
    /// The reactor has reported the helper's bell.
    rang: bool,
    /// The slots of the sockets that the jobs are for.
    slots: HashMap<u64, usize>,
    /// Sockets of connects that were called off before their thread had begun.
    strays: HashMap<u64, OwnedFd>,
}

impl Jobs {
    pub(in crate::plain) fn new(io: KernelIo) -> Jobs {
        Jobs { io, helper: None, rang: false, slots: HashMap::new(), strays: HashMap::new() }
    }

    /// The reactor has reported the bell.
    pub(in crate::plain) fn note_bell(&mut self) {
        self.rang = true;
    }

    /// True if jobs are over.
    pub(in crate::plain) fn are_over(&self) -> bool {
        self.rang
    }

    /// True if connects that were called off must be called off again.
    pub(in crate::plain) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// The helper, which is made when it is first needed. `registry`: where its bell is registered,
    /// and by which token.
    fn helper(&mut self, registry: (&mio::Registry, mio::Token)) -> io::Result<&mut Helper> {
        if self.helper.is_none() {
            let made = Helper::new(self.io)?;
            let bell = made.bell().as_raw_fd();
            let (registry, token) = registry;
            registry.register(&mut SourceFd(&bell), token, mio::Interest::READABLE)?;
            self.helper = Some(made);
        }
        Ok(self.helper.as_mut().expect("made above"))
    }

    /// True if an accept must not begin before a connection is there.
    ///
    /// # Errors
    /// As [`Jobs::start`].
    pub(in crate::plain) fn need_readiness(
        &mut self,
        registry: (&mio::Registry, mio::Token),
    ) -> io::Result<bool> {
        self.helper(registry).map(|helper| helper.needs_readiness())
    }

    /// Begins a job for the socket in `slot`, and returns its number.
    ///
    /// # Errors
    /// The kernel's error, if there can be no helper or no thread.
    pub(in crate::plain) fn start(
        &mut self,
        job: Job,
        slot: usize,
        registry: (&mio::Registry, mio::Token),
    ) -> io::Result<u64> {
        let number = self.helper(registry)?.start(job)?;
        self.slots.insert(number, slot);
        Ok(number)
    }

    /// The results of jobs that are over, if the bell has rung.
    pub(in crate::plain) fn collect(&mut self) -> Vec<(u64, JobResult)> {
        match &self.helper {
            Some(helper) if std::mem::take(&mut self.rang) => helper.collect(),
            _ => Vec::new(),
        }
    }

    /// A job is over. Returns the slot of its socket. None: no operation waits for the job any more.
    pub(in crate::plain) fn end(&mut self, number: u64) -> Option<usize> {
        self.strays.remove(&number);
        self.slots.remove(&number)
    }

    /// Calls a job off.
    pub(in crate::plain) fn call_off(&self, number: u64) -> CallOff {
        self.helper.as_ref().map_or(CallOff::Lost, |helper| helper.call_off(number))
    }

    /// No operation waits any more for a connect that was called off.
    pub(in crate::plain) fn abandon(&mut self, number: u64) {
        self.slots.remove(&number);
    }

    /// Keeps a connect whose thread had not begun, to be called off again.
    pub(in crate::plain) fn keep_stray(&mut self, number: u64, fd: OwnedFd) {
        self.strays.insert(number, fd);
    }

    /// Calls off connects again whose thread had not begun at the first time.
    pub(in crate::plain) fn stop_strays(&mut self) {
        self.strays.retain(|_, fd| is_not_begun(sys::shutdown(fd.as_fd(), libc::SHUT_RDWR)));
    }
}

/// True for what shutdown(2) says of a TCP socket before its connect(2): the thread has taken the job,
/// but not made the call yet.
pub(in crate::plain) fn is_not_begun(shut: io::Result<()>) -> bool {
    shut.is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
}
