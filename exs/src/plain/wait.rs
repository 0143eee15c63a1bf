//! Connects and accepts: by readiness if the owner has set O_NONBLOCK, by the helper if the socket
//! blocks.

use std::os::fd::AsFd;

use super::helper::{CallOff, Job, JobResult, is_not_begun};
use super::sock::Connecting;
use super::types::{End, Failure, Kind, Posted, Target};
use super::{BELL, Plain, name};
use crate::sys::{self, KernelAddr};
use crate::time::Time;

impl Plain {
    pub(super) fn post_connect(
        &mut self,
        now: Time,
        posted: Posted,
        target: &Target<'_>,
        addr: KernelAddr,
    ) {
        if self.socks.of(&name(target)).is_some_and(|s| s.connecting.is_some()) {
            let why = Failure::Os { call: "connect", errno: libc::EALREADY };
            return self.end(posted, End::new(0, Err(why)));
        }
        // Datagram sockets only note the address, and do not wait. But the server of a file system may
        // take any time to look up a path, whatever the socket.
        let notes = !matches!(target.kind, Kind::Stream | Kind::SeqPacket);
        let direct = addr.as_unix_path().is_none()
            && (notes || sys::is_nonblocking(target.fd).unwrap_or(true));
        if direct {
            match sys::connect(target.fd, &addr) {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {}
                other => {
                    let result = other.map_err(|e| Failure::os("connect", &e));
                    return self.end(posted, End::new(0, result));
                }
            }
        }
        let connecting = Connecting { posted, job: None, cut: None };
        let held = self.hold(now, target, &posted, 0, |s| s.connecting = Some(connecting));
        let Some(slot) = held else { return };
        if !direct {
            let job = self.socks[slot].fd.try_clone().map(|fd| Job::Connect(fd, addr));
            match job.and_then(|job| self.start(job, slot)) {
                Ok(job) => {
                    if let Some(c) = &mut self.socks[slot].connecting {
                        c.job = Some(job);
                    }
                }
                Err(e) => self.end_connect(slot, Err(Failure::os("connect", &e))),
            }
        }
        self.settle(slot, now);
    }

    pub(super) fn post_accept(&mut self, now: Time, posted: Posted, target: &Target<'_>) {
        let held = self.hold(now, target, &posted, 0, |s| s.accepting.queue.push_back(posted));
        if let Some(slot) = held {
            self.advance_accept(slot);
            self.settle(slot, now);
        }
    }

    /// Ends a connect that the reactor reports, if it is over.
    pub(super) fn advance_connect(&mut self, slot: usize) {
        let s = &self.socks[slot];
        if s.connecting.as_ref().is_none_or(|c| c.job.is_some())
            || !sys::poll_now(s.fd.as_fd(), libc::POLLOUT).is_ok_and(|found| found != 0)
        {
            return;
        }
        let result = match sys::socket_option(s.fd.as_fd(), libc::SO_ERROR) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(Failure::Os { call: "connect", errno }),
            Err(e) => Err(Failure::os("connect", &e)),
        };
        self.end_connect(slot, result);
    }

    fn end_connect(&mut self, slot: usize, result: Result<(), Failure>) {
        let s = &mut self.socks[slot];
        if let Some(c) = s.connecting.take() {
            self.ended.push((c.posted, End::new(0, result)));
            // Operations that were posted behind the connect have their turn.
            s.ready = (true, true);
            self.socks.list(slot);
        }
    }

    /// Takes connections for the accepts that wait, or has the helper wait for one.
    pub(super) fn advance_accept(&mut self, slot: usize) {
        loop {
            let s = &mut self.socks[slot];
            if s.accepting.job.is_some() || s.accepting.queue.is_empty() {
                return;
            }
            let fd = s.fd.as_fd();
            if !sys::is_nonblocking(fd).unwrap_or(false) {
                return self.hand_over_accept(slot);
            }
            let end = match sys::accept(fd) {
                Ok(taken) => accepted(Ok(Some(taken))),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => accepted(Err(e)),
            };
            if let Some(posted) = s.accepting.queue.pop_front() {
                self.ended.push((posted, end));
            }
        }
    }

    fn hand_over_accept(&mut self, slot: usize) {
        // If the program calls listen(2) at this very moment, the accept was too early.
        let s = &self.socks[slot];
        let listens = sys::socket_option(s.fd.as_fd(), libc::SO_ACCEPTCONN).is_ok_and(|on| on != 0);
        let made = if listens {
            self.jobs.need_readiness((&self.registry, mio::Token(self.token_base + BELL)))
        } else {
            let connects = matches!(s.kind, Kind::Stream | Kind::SeqPacket);
            let errno = if connects { libc::EINVAL } else { libc::EOPNOTSUPP };
            Err(std::io::Error::from_raw_os_error(errno))
        };
        let s = &mut self.socks[slot];
        let started = match made {
            Ok(true) if sys::poll_now(s.fd.as_fd(), libc::POLLIN).is_ok_and(|found| found == 0) => {
                return;
            }
            Ok(_) => s.fd.try_clone().and_then(|fd| self.start(Job::Accept(fd), slot)),
            Err(e) => Err(e),
        };
        let s = &mut self.socks[slot];
        match started {
            Ok(job) => s.accepting.job = Some(job),
            Err(e) => {
                // The reason holds for all accepts.
                for posted in s.accepting.queue.drain(..) {
                    let errno = e.raw_os_error().unwrap_or(libc::EIO);
                    let why = Failure::Os { call: "accept", errno };
                    self.ended.push((posted, End::new(0, Err(why))));
                }
            }
        }
    }

    fn start(&mut self, job: Job, slot: usize) -> std::io::Result<u64> {
        self.jobs.start(job, slot, (&self.registry, mio::Token(self.token_base + BELL)))
    }

    /// Ends operations whose jobs are over.
    pub(super) fn collect(&mut self, now: Time) {
        for (number, result) in self.jobs.collect() {
            // If no operation waits for this job any more, a connection that it took is closed.
            let Some(slot) = self.jobs.end(number) else { continue };
            let s = &mut self.socks[slot];
            if s.accepting.job == Some(number) {
                s.accepting.job = None;
                let cut = s.accepting.cut.take();
                if let Some(posted) = s.accepting.queue.pop_front() {
                    self.ended.push((posted, finish(result, cut, accepted)));
                }
                self.advance_accept(slot);
            } else {
                let cut = s.connecting.as_mut().and_then(|c| c.cut.take());
                let end = finish(result, cut, connected);
                self.end_connect(slot, end.result);
            }
            self.settle(slot, now);
        }
    }

    /// Ends operations of a socket for which `which` is true; returns how many. A job of the helper is
    /// called off, and its operation may end later.
    pub(super) fn cut(
        &mut self,
        slot: usize,
        now: Time,
        which: impl Fn(&Posted) -> bool,
        why: impl Fn(&Posted) -> Failure,
    ) -> usize {
        let Some(s) = self.socks.get_mut(slot) else { return 0 };
        let mut count = s.cut(&which, &why, &mut self.ended);
        if let Some(job) = s.accepting.job
            && let Some(first) = s.accepting.queue.front().copied()
            && which(&first)
        {
            count += 1;
            s.accepting.cut = Some(why(&first));
            if self.jobs.call_off(job) == CallOff::Lost {
                // A connection that the job brings later goes to the next accept.
                let s = &mut self.socks[slot];
                s.accepting.queue.pop_front();
                let cut = s.accepting.cut.take();
                self.ended.push((first, End::new(0, cut.map_or(Ok(()), Err))));
            }
        }
        if let Some(c) = &mut self.socks[slot].connecting
            && which(&c.posted)
        {
            count += 1;
            let cut = why(&c.posted);
            match c.job {
                None => self.end_connect(slot, Err(cut)),
                Some(job) => {
                    c.cut = Some(cut);
                    self.cut_connect(slot, job, now);
                }
            }
        }
        self.settle(slot, now);
        count
    }

    fn cut_connect(&mut self, slot: usize, job: u64, now: Time) {
        if self.jobs.call_off(job) == CallOff::Replies {
            return;
        }
        self.jobs.abandon(job);
        let s = &mut self.socks[slot];
        // shutdown(2) makes the connect of a TCP socket return. Of another socket the thread waits
        // on, and no operation waits for the thread.
        if is_not_begun(sys::shutdown(s.fd.as_fd(), libc::SHUT_RDWR))
            && let Ok(fd) = s.fd.try_clone()
        {
            self.jobs.keep_stray(job, fd);
            self.timers.start_tick(now);
        }
        let cut = s.connecting.as_mut().and_then(|c| c.cut.take());
        self.end_connect(slot, cut.map_or(Ok(()), Err));
    }
}

/// The end of a job's operation. The reason `cut` counts only if the job failed.
fn finish(result: JobResult, cut: Option<Failure>, end: fn(JobResult) -> End) -> End {
    match (result, cut) {
        (Err(_), Some(why)) => End::new(0, Err(why)),
        (result, _) => end(result),
    }
}

fn accepted(result: JobResult) -> End {
    match result {
        Ok(accepted) => End { accepted: accepted.map(Box::new), ..End::new(0, Ok(())) },
        Err(e) => End::new(0, Err(Failure::os("accept", &e))),
    }
}

fn connected(result: JobResult) -> End {
    End::new(0, result.map(drop).map_err(|e| Failure::os("connect", &e)))
}
