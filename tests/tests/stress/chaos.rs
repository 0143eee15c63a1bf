//! Threads that do anything to sockets that all of them share.

use std::net::{Shutdown, SocketAddr};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use exs::{
    EventKind, Export, Interest, Options, RecvFlags, RemoteBuffer, Rights, Socket, SocketType,
    Token,
};
use exs_tests::harness::{Ledger, Rng, Watchdog, accepted};

const THREADS: u64 = 4;
const STEPS: usize = 1500;
/// Sockets that the threads share.
const POOL: usize = 12;

/// What the threads share. A thread that takes a socket out holds a clone: the socket may be
/// closed, cut or dropped by another thread meanwhile.
#[derive(Default)]
struct Shared {
    sockets: Mutex<Vec<Socket>>,
    listeners: Mutex<Vec<(SocketType, Socket, SocketAddr)>>,
    remotes: Mutex<Vec<RemoteBuffer>>,
}

fn pick<T: Clone>(list: &Mutex<Vec<T>>, rng: &mut Rng) -> Option<T> {
    let list = list.lock().unwrap();
    if list.is_empty() { None } else { Some(list[rng.between(0, list.len() - 1)].clone()) }
}

/// Adds to a list of `most`; what was in the place goes.
fn put<T>(list: &Mutex<Vec<T>>, most: usize, rng: &mut Rng, thing: T) {
    let old = {
        let mut list = list.lock().unwrap();
        if list.len() < most {
            list.push(thing);
            return;
        }
        let at = rng.between(0, most - 1);
        std::mem::replace(&mut list[at], thing)
    };
    drop(old);
}

fn options() -> Options {
    Options::default()
        .with_ring_size(64 << 10)
        .with_linger(Duration::from_millis(100))
        .with_connect_timeout(Duration::from_secs(2))
}

fn listener(rng: &mut Rng) -> (SocketType, Socket, SocketAddr) {
    let ty = if rng.one_in(2) { SocketType::Stream } else { SocketType::SeqPacket };
    let listener = Socket::with_options(ty, options()).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(u32::try_from(rng.between(1, 8)).unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    (ty, listener, addr)
}

/// One thread.
struct Actor<'a> {
    rng: Rng,
    ledger: Ledger,
    exports: Vec<Export>,
    tokens: Vec<Token>,
    shared: &'a Shared,
}

impl Actor<'_> {
    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            // Sometimes it looks, sometimes it waits, sometimes it lets it gather.
            match self.rng.between(0, 9) {
                0..5 => self.take(Duration::ZERO),
                5 => self.take(Duration::from_micros(300)),
                _ => {}
            }
        }
    }

    fn take(&mut self, limit: Duration) {
        while let Some(event) = self.ledger.poll(limit) {
            if event.kind() == EventKind::Accept
                && !self.rng.one_in(8)
                && let Some((socket, _)) = accepted(event)
            {
                put(&self.shared.sockets, POOL, &mut self.rng, socket);
            }
            // Otherwise the event is dropped, with buffer and socket.
            if !limit.is_zero() {
                break;
            }
        }
    }

    fn note(&mut self, posted: Option<Token>) {
        if let Some(token) = posted {
            if self.tokens.len() == 32 {
                self.tokens.clear();
            }
            self.tokens.push(token);
        }
    }

    fn step(&mut self) {
        match self.rng.between(0, 99) {
            0..12 => self.connect(),
            12..16 => {
                let made = listener(&mut self.rng);
                put(&self.shared.listeners, 3, &mut self.rng, made);
            }
            16..26 => self.accept(),
            n => {
                let Some(socket) = pick(&self.shared.sockets, &mut self.rng) else { return };
                match n {
                    26..44 => self.send(&socket),
                    44..66 => self.recv(&socket),
                    66..80 => self.one_sided(&socket),
                    _ => self.disturb(&socket),
                }
            }
        }
    }

    fn connect(&mut self) {
        let Some((ty, _, addr)) = pick(&self.shared.listeners, &mut self.rng) else { return };
        // Sometimes of the wrong kind.
        let ty = match self.rng.one_in(10) {
            true => SocketType::Stream,
            false => ty,
        };
        let socket = Socket::with_options(ty, options()).unwrap();
        let token = self.ledger.try_post("connect", |q, t| socket.connect(q, t, addr)).ok();
        self.note(token);
        match self.rng.between(0, 9) {
            0 => socket.abort(),
            1 => drop(socket.cancel_all()),
            // Dropped while it connects.
            2 => {}
            _ => put(&self.shared.sockets, POOL, &mut self.rng, socket),
        }
    }

    fn accept(&mut self) {
        let Some((_, listener, _)) = pick(&self.shared.listeners, &mut self.rng) else { return };
        let token = match self.rng.between(0, 19) {
            0 => self.ledger.try_post("close", |q, t| listener.close(q, t)).ok(),
            1 => {
                listener.cancel_all();
                None
            }
            2..5 => {
                self.ledger.try_post("poll", |q, t| listener.poll(q, t, Interest::READABLE)).ok()
            }
            _ => self.ledger.try_post("accept", |q, t| listener.accept(q, t)).ok(),
        };
        self.note(token);
    }

    fn send(&mut self, socket: &Socket) {
        let size = self.rng.size(200_000);
        let token = match self.rng.one_in(5) {
            true => {
                let parts = vec![vec![1; size / 2].into(), vec![2; size.min(5000)].into()];
                let post = |q: &_, t| socket.send_vectored(q, t, parts);
                self.ledger.try_post("sendv", post).ok()
            }
            false => {
                let post = |q: &_, t| socket.send(q, t, vec![3; size]);
                self.ledger.try_post("send", post).ok()
            }
        };
        self.note(token);
    }

    fn recv(&mut self, socket: &Socket) {
        let size = self.rng.size(200_000);
        let flags = RecvFlags::NONE.with_waitall(self.rng.one_in(4)).with_peek(self.rng.one_in(10));
        let token = match self.rng.one_in(5) {
            true => {
                let parts = vec![vec![0; size].into(), vec![0; size.min(5000)].into()];
                let post = |q: &_, t| socket.recv_vectored(q, t, parts, flags);
                self.ledger.try_post("recvv", post).ok()
            }
            false => {
                let post = |q: &_, t| socket.recv(q, t, vec![0; size], flags);
                self.ledger.try_post("recv", post).ok()
            }
        };
        self.note(token);
    }

    fn one_sided(&mut self, socket: &Socket) {
        match self.rng.between(0, 9) {
            0..3 => {
                let life = self.rng.one_in(2).then_some(Duration::from_millis(1));
                let size = self.rng.size(100_000);
                if let Ok(export) = socket.export(vec![9; size], Rights::READ_WRITE, life) {
                    put(&self.shared.remotes, 8, &mut self.rng, export.descriptor());
                    self.exports.push(export);
                }
            }
            3..5 if !self.exports.is_empty() => {
                let at = self.rng.between(0, self.exports.len() - 1);
                let export = self.exports.swap_remove(at);
                match self.rng.between(0, 2) {
                    0 => drop(export),
                    1 => drop(export.revoke_blocking()),
                    _ => {
                        self.ledger.post("revoke", |q, t| export.revoke(q, t));
                    }
                }
            }
            n => {
                // Usually of another connection: then it costs this one its life.
                let Some(remote) = pick(&self.shared.remotes, &mut self.rng) else { return };
                let len = usize::try_from(remote.len()).unwrap();
                let len = self.rng.size(len);
                let token = if n < 8 {
                    let post = |q: &_, t| socket.read(q, t, &remote, 0, vec![0; len]);
                    self.ledger.try_post("read", post).ok()
                } else {
                    let post = |q: &_, t| socket.write(q, t, &remote, 0, vec![7; len]);
                    self.ledger.try_post("write", post).ok()
                };
                self.note(token);
            }
        }
    }

    fn disturb(&mut self, socket: &Socket) {
        let how = match self.rng.between(0, 2) {
            0 => Shutdown::Read,
            1 => Shutdown::Write,
            _ => Shutdown::Both,
        };
        let token = match self.rng.between(0, 15) {
            0 => self.ledger.try_post("close", |q, t| socket.close(q, t)).ok(),
            1 => {
                socket.abort();
                None
            }
            2 => self.ledger.try_post("shutdown", |q, t| socket.shutdown(q, t, how)).ok(),
            3 => {
                socket.cancel_all();
                None
            }
            4..9 => self.ledger.try_post("poll", |q, t| socket.poll(q, t, Interest::BOTH)).ok(),
            9 => {
                let limit = Some(Duration::from_millis(1));
                let options = options().with_recv_timeout(limit).with_send_timeout(limit);
                let _ = socket.set_options(&options);
                None
            }
            _ if self.tokens.is_empty() => None,
            _ => {
                // Perhaps another thread's operation of that name, perhaps an ended one.
                let at = self.rng.between(0, self.tokens.len() - 1);
                socket.cancel(self.tokens[at]);
                None
            }
        };
        self.note(token);
    }
}

fn run(seed: u64) {
    let shared = Shared::default();
    let barrier = Barrier::new(usize::try_from(THREADS).unwrap());
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (shared, barrier) = (&shared, &barrier);
            s.spawn(move || {
                let mut actor = Actor {
                    rng: Rng::new(seed * 1000 + thread),
                    ledger: Ledger::new(),
                    exports: Vec::new(),
                    tokens: Vec::new(),
                    shared,
                };
                actor.run();
                // With the last handle of each socket all its operations end.
                actor.exports.clear();
                barrier.wait();
                if thread == 0 {
                    shared.sockets.lock().unwrap().clear();
                    shared.listeners.lock().unwrap().clear();
                }
                // An accept that ends now brings a socket, which goes with its event.
                actor.ledger.finish();
            });
        }
    });
}

#[test]
fn anything_by_any_thread() {
    for seed in 0..4 {
        let _dog = Watchdog::new(&format!("anything_by_any_thread, seed {seed}"));
        run(seed);
    }
}
