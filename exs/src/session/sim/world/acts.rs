//! The deeds of the users.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::mem::{Access, AtomicOp, Atomics};
use crate::rnic::EagerSend;
use crate::session::{Buf, Done, OpError, RecvOpts, SendSource};

use super::super::user::{Kind, Op, Sent, file_source, iovec};
use super::World;

/// 5000 bytes to send from.
fn file() -> &'static (Arc<std::fs::File>, Vec<u8>) {
    static FILE: OnceLock<(Arc<std::fs::File>, Vec<u8>)> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("exs-sim-{}", std::process::id()));
        let data: Vec<u8> =
            (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let file = Arc::new(std::fs::File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        (file, data)
    })
}

impl World {
    /// The user of one end does something.
    pub(super) fn act(&mut self, side: usize) {
        self.steps_left[side] -= 1;
        self.next_step[side] = self.net.soon(1_500_000);
        let busy = self.users[side].ops.len();
        let calm = self.plan.calm;
        match self.rng.below(if calm { 20 } else { 27 }) {
            0..8 if busy < 12 => self.post_send(side),
            8..16 if busy < 12 => self.post_recv(side),
            16 | 17 => self.post_sided(side),
            18 | 19 => self.export(side),
            20..24 => self.cancel(side),
            24 if self.rng.one_in(3) => self.shutdown(side),
            25 if self.rng.one_in(4) => {
                self.users[side].closing = true;
                self.with(side, |s, end| s.abort(end, OpError::Aborted));
            }
            26 if self.rng.one_in(3) => match self.rng.below(3) {
                0 => {
                    let linger = Duration::from_millis(self.rng.below(50));
                    self.close(side, linger);
                }
                1 => {
                    let now = self.net.now;
                    self.with(side, |s, _| s.shutdown_recv(now));
                }
                _ => self.revoke(side),
            },
            _ => {}
        }
        if self.steps_left[side] == 0 && !calm && !self.users[side].closing {
            self.close(side, Duration::from_secs(2));
        }
    }

    /// Sizes of pieces that make up `len`.
    fn pieces(&mut self, len: usize) -> Vec<usize> {
        if self.rng.one_in(2) {
            return vec![len];
        }
        let mut left = len;
        let mut sizes = Vec::new();
        for _ in 0..self.rng.below(8) {
            let n = self.rng.size(0, left);
            sizes.push(n);
            left -= n;
        }
        sizes.push(left);
        sizes
    }

    fn post_send(&mut self, side: usize) {
        let len = self.rng.size(0, self.plan.max_len);
        let now = self.net.now;
        let op = self.users[side].op();
        let (source, bufs, data, real) = if self.rng.one_in(5) {
            let (file, content) = file();
            let past = if self.plan.calm { 0 } else { 300 };
            let len = len.min(content.len() / 2);
            let offset = self.rng.size(0, content.len() - len + past.min(len));
            let mut data = content.get(offset..).unwrap_or(&[]).to_vec();
            let real = data.len().min(len);
            data.resize(len, 0);
            (file_source(file, offset as u64, len as u64), Vec::new(), data, real)
        } else {
            let data: Vec<u8> = (0..len).map(|_| self.rng.next().to_le_bytes()[0]).collect();
            let sizes = self.pieces(len);
            let bufs = self.users[side].memory(&mut self.net, side, &sizes, &data);
            (SendSource::Memory(iovec(&bufs)), bufs, data, len)
        };
        if let [buf] = &bufs[..] {
            let sent = self.with(side, |s, end| s.try_send_eager(end, &buf.seg.io_vec(0, len), 1));
            if sent == EagerSend::Batched {
                // A burst can delay it for a while.
                let urgent = self.rng.one_in(2);
                self.net.flush(side, urgent);
            }
            if sent.is_taken() {
                drop(source);
                return self.passed(side, op, data, bufs);
            }
        }
        match self.with(side, |s, _| s.post_send(now, op, source)) {
            Ok(()) => {
                if self.trace {
                    eprintln!("{now:?} {side}: send {op} of {len}");
                }
                let cut = self.plan.cfg[side].send_timeout.is_some();
                let user = &mut self.users[side];
                user.sends.push_back(Sent { data, real, cut, end: None });
                let kind = Kind::Send(user.sends.len() - 1);
                user.ops.insert(op, Op { kind, bufs });
            }
            Err((error, source)) => {
                drop(source);
                let too_long = matches!(error, OpError::TooLong { .. });
                assert!(too_long || !self.plan.calm || self.users[side].shut, "{error}");
                for buf in &bufs {
                    self.net.deregister(side, buf);
                }
            }
        }
    }

    /// A send was over at once.
    fn passed(&mut self, side: usize, op: u64, data: Vec<u8>, bufs: Vec<Buf>) {
        if self.trace {
            eprintln!("{:?} {side}: send {op} of {} at once", self.net.now, data.len());
        }
        let (bytes, stream, real) = (data.len() as u64, self.stream(), data.len());
        let user = &mut self.users[side];
        user.sends.push_back(Sent { data, real, cut: false, end: None });
        user.ops.insert(op, Op { kind: Kind::Send(user.sends.len() - 1), bufs });
        let done = Done { op, bytes, total: bytes, eof: false, result: Ok(()) };
        user.done(&mut self.net, side, &done, stream, true);
    }

    fn post_recv(&mut self, side: usize) {
        let len = self.rng.size(if self.plan.calm { 1 } else { 0 }, self.plan.max_len);
        let sizes = self.pieces(len);
        let peek = self.rng.one_in(8);
        let waitall = !self.plan.calm && self.rng.one_in(3);
        self.receive(side, &sizes, RecvOpts { waitall, peek });
    }

    pub(super) fn receive(&mut self, side: usize, sizes: &[usize], opts: RecvOpts) {
        let now = self.net.now;
        let op = self.users[side].op();
        let bufs = self.users[side].memory(&mut self.net, side, sizes, &[]);
        let iov = iovec(&bufs);
        match self.with(side, |s, _| s.post_recv(now, op, iov, opts)) {
            Ok(_) => {
                if self.trace {
                    eprintln!("{now:?} {side}: receive {op} into {sizes:?} {opts:?}");
                }
                let kind = Kind::Recv { peek: opts.peek };
                self.users[side].ops.insert(op, Op { kind, bufs });
            }
            Err((_, iov)) => {
                drop(iov);
                for buf in &bufs {
                    self.net.deregister(side, buf);
                }
            }
        }
    }

    pub(super) fn export(&mut self, side: usize) {
        if self.users[side].readable.is_some() {
            return;
        }
        self.net.sides[side].binding_export = true;
        let data: Vec<u8> = (0..400).map(|_| self.rng.next().to_le_bytes()[0]).collect();
        let bufs = self.users[side].memory(&mut self.net, side, &[400, 4000], &data);
        let keys = [Access::REMOTE_READ, Access::REMOTE_WRITE].map(|access| {
            let buf = bufs[usize::from(access.remote_write)].clone();
            self.with(side, |s, end| s.export(end, &buf, access)).ok().map(|key| (buf, key))
        });
        self.net.sides[side].binding_export = false;
        self.export_counter(side);
        let [read, write] = keys;
        self.users[side].readable = read;
        self.users[side].writable = write.map(|(buf, key)| (buf, key, 0));
    }

    /// Opens a counter, once, where the device executes additions.
    fn export_counter(&mut self, side: usize) {
        if self.users[side].counter.is_some() {
            return;
        }
        self.net.sides[side].binding_export = true;
        let buf = self.users[side].memory(&mut self.net, side, &[8], &[0; 8]).remove(0);
        let access = Access::REMOTE_ATOMIC;
        let key = self.with(side, |s, end| s.export(end, &buf, access));
        self.net.sides[side].binding_export = false;
        let none = self.plan.cfg[side].atomics == Atomics::None;
        assert!(!none || key.is_err(), "an export that the peer cannot use");
        self.users[side].counter = key.ok().map(|key| (buf, key));
    }

    /// Adds to the peer's counter, if both sides can.
    fn post_addition(&mut self, side: usize) {
        let Some((counter, key)) = self.users[1 - side].counter.clone() else { return };
        let op = self.users[side].op();
        let bufs = self.users[side].memory(&mut self.net, side, &[8], &[]);
        let (old, what) = (bufs[0].clone(), AtomicOp::FetchAdd(1));
        let raddr = counter.seg.addr();
        match self.with(side, |s, _| s.post_atomic(op, raddr, key, what, old)) {
            Ok(()) => {
                let none = self.plan.cfg.iter().any(|c| c.atomics == Atomics::None);
                assert!(!none, "posted, although one side has no atomic operations");
                drop(self.users[side].ops.insert(op, Op { kind: Kind::Add, bufs }));
            }
            Err(_) => self.net.deregister(side, &bufs[0]),
        }
    }

    /// Closes an export; the peer may or may not know.
    fn revoke(&mut self, side: usize) {
        let user = &mut self.users[side];
        let keys = [user.readable.as_ref().map(|r| r.1), user.writable.as_ref().map(|w| w.1)];
        let Some(key) = self.rng.pick(&keys) else { return };
        self.with(side, |s, end| s.revoke(end, key));
        if self.rng.one_in(2) {
            let user = &mut self.users[side];
            (user.readable, user.writable) = (None, None);
        }
    }

    fn post_sided(&mut self, side: usize) {
        if self.rng.one_in(3) {
            return self.post_addition(side);
        }
        let now = self.net.now;
        let op = self.users[side].op();
        if self.rng.one_in(2) {
            let Some((target, key)) = self.users[1 - side].readable.clone() else { return };
            let len = self.rng.size(0, target.seg.len());
            let at = self.rng.size(0, target.seg.len() - len);
            let mut expect = vec![0; len];
            target.seg.read_at(at, &mut expect);
            let bufs = self.users[side].memory(&mut self.net, side, &[len], &[]);
            let (sink, raddr) = (bufs[0].clone(), target.seg.addr() + at as u64);
            match self.with(side, |s, _| s.post_read(now, op, raddr, key, sink)) {
                Ok(()) => {
                    drop(self.users[side].ops.insert(op, Op { kind: Kind::Read { expect }, bufs }))
                }
                Err(_) => self.net.deregister(side, &bufs[0]),
            }
        } else {
            let Some((target, key, at)) = self.users[1 - side].writable.clone() else { return };
            let len = self.rng.size(0, (target.seg.len() - at).min(300));
            if let Some(w) = &mut self.users[1 - side].writable {
                w.2 += len;
            }
            let data: Vec<u8> = (0..len).map(|_| self.rng.next().to_le_bytes()[0]).collect();
            let sizes = self.pieces(len);
            let bufs = self.users[side].memory(&mut self.net, side, &sizes, &data);
            let raddr = target.seg.addr() + at as u64;
            let (iov, confirm) = (iovec(&bufs), self.rng.one_in(2));
            let target = target.seg.slice(at, len).unwrap();
            match self.with(side, |s, _| s.post_write(now, op, raddr, key, iov, confirm)) {
                Ok(()) => {
                    let kind = Kind::Write { target, confirm };
                    self.users[side].ops.insert(op, Op { kind, bufs });
                }
                Err((_, iov)) => {
                    drop(iov);
                    bufs.iter().for_each(|buf| self.net.deregister(side, buf));
                }
            }
        }
    }

    fn cancel(&mut self, side: usize) {
        let mut ops: Vec<u64> = self.users[side].ops.keys().copied().collect();
        ops.sort_unstable();
        if ops.is_empty() {
            return;
        }
        let (op, now) = (self.rng.pick(&ops), self.net.now);
        if let Some(Kind::Send(at)) = self.users[side].ops.get(&op).map(|op| &op.kind) {
            let at = *at;
            self.users[side].sends[at].cut = true;
        }
        let found = self.with(side, |s, _| s.cancel(now, op));
        if self.trace {
            eprintln!("{now:?} {side}: cancel {op}: {found}");
        }
    }

    pub(super) fn shutdown(&mut self, side: usize) {
        let (op, now) = (self.users[side].op(), self.net.now);
        if self.with(side, |s, _| s.shutdown_send(now, op)).is_ok() {
            self.users[side].shut = true;
            self.users[side].ops.insert(op, Op { kind: Kind::Shutdown, bufs: Vec::new() });
        }
    }

    pub(super) fn close(&mut self, side: usize, linger: Duration) {
        let (op, now) = (self.users[side].op(), self.net.now);
        self.users[side].closing = true;
        self.users[side].ops.insert(op, Op { kind: Kind::Close, bufs: Vec::new() });
        self.with(side, |s, _| s.close(now, op, linger));
    }
}
