//! A test of the whole library: calls that move data touch nothing that all threads share.
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "a C program calls one after the other")]

use std::ffi::c_int;
use std::mem::{size_of, zeroed};

use exs::sys::thread_touches;
use libc::{MSG_WAITALL, sockaddr_in, socklen_t};

use crate::abi::*;
use crate::accept::exs_accept;
use crate::close::exs_close;
use crate::connect::{exs_bind, exs_connect, exs_getsockname, exs_listen, exs_socket};
use crate::data::{exs_recv, exs_send};
use crate::memory::{exs_mderegister, exs_mregister};
use crate::ptr::{Bytes, In, Out};
use crate::queues::{exs_qcreate, exs_qdelete, exs_qdequeue};

/// Operations of each thread: as many sends as receives.
const OPERATIONS: usize = 50_000;
const THREADS: usize = 2;
const DEPTH: usize = 16;
const SIZE: usize = 64;

fn out<T>(place: &mut T) -> Out<T> {
    Out::named(std::ptr::from_mut(place) as u64)
}

fn bytes(memory: &mut [u8]) -> Bytes {
    let (exs_iov_base, exs_iov_len) = (memory.as_mut_ptr().cast(), memory.len());
    let (exs_iov_mhandle, exs_iov_reserved) = (EXS_MHANDLE_UNREGISTERED, 0);
    Bytes::of(&Iovec { exs_iov_base, exs_iov_len, exs_iov_mhandle, exs_iov_reserved })
}

/// A connection of which a thread has both ends, and what it uses with it.
struct Ends {
    queue: c_int,
    sender: c_int,
    receiver: c_int,
    memory: Box<[u8]>,
    registered: c_int,
}

impl Ends {
    fn new() -> Ends {
        // SAFETY: takes no pointers.
        let (queue, listener, sender) = unsafe {
            let make = || exs_socket(libc::AF_INET, libc::SOCK_STREAM, 0);
            (exs_qcreate(4 * c_int::try_from(DEPTH).unwrap()), make(), make())
        };
        assert!(queue > 0 && listener >= 0 && sender >= 0);
        // SAFETY: an address is plain numbers.
        let mut addr: sockaddr_in = unsafe { zeroed() };
        addr.sin_family = libc::AF_INET.try_into().unwrap();
        addr.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let mut len = socklen_t::try_from(size_of::<sockaddr_in>()).unwrap();
        let name = out(&mut addr).cast();
        // SAFETY: `addr` and `len` outlive the calls and the connect, whose event is awaited below.
        unsafe {
            assert_eq!(exs_bind(listener, In::from(name), len), 0);
            assert_eq!(exs_listen(listener, 1), 0);
            assert_eq!(exs_getsockname(listener, name, out(&mut len)), 0);
            assert_eq!(exs_accept(listener, Out::named(0), 0, queue, 1), 0);
            assert_eq!(exs_connect(sender, In::from(name), len, 0, queue, 2), 0);
        }
        let mut receiver = -1;
        for _ in 0..2 {
            let event = dequeue(queue, 1)[0];
            assert_eq!(event.exs_evt_errno, 0);
            if event.exs_evt_ahandle == 1 {
                // SAFETY: the event of an accept.
                receiver = unsafe { event.exs_evt_union.exs_evt_accept.exs_evt_newsocket };
            }
        }
        assert!(receiver >= 0);
        let mut memory = vec![7; 2 * DEPTH * SIZE].into_boxed_slice();
        let at = bytes(&mut memory);
        // SAFETY: the memory lives until `close`, which ends the registration first.
        let registered = unsafe { exs_mregister(at, memory.len(), 0) };
        // SAFETY: takes no pointers.
        assert_eq!(unsafe { exs_close(listener, 0, EXS_QHANDLE_INVALID, 0) }, 0);
        Ends { queue, sender, receiver, memory, registered }
    }

    /// Moves messages, a few at a time, for this many operations.
    fn flow(&mut self, operations: usize) {
        let Ends { queue, sender, receiver, ref mut memory, registered } = *self;
        for _ in 0..operations / (2 * DEPTH) {
            for (i, piece) in memory.chunks_mut(SIZE).enumerate() {
                let at = bytes(piece);
                // SAFETY: no code uses the memory before the events of this round have come.
                let posted = unsafe {
                    match i < DEPTH {
                        true => exs_recv(receiver, at, SIZE, MSG_WAITALL, queue, 3, registered),
                        false => exs_send(sender, at, SIZE, 0, queue, 4, registered),
                    }
                };
                assert_eq!(posted, 0);
            }
            let mut left = 2 * DEPTH;
            while left > 0 {
                let events = dequeue(queue, left);
                assert!(events.iter().all(|event| event.exs_evt_errno == 0));
                left -= events.len();
            }
        }
    }

    fn close(self) {
        // SAFETY: takes no pointers.
        unsafe {
            assert_eq!(exs_mderegister(self.registered), 0);
            assert_eq!(exs_close(self.sender, 0, EXS_QHANDLE_INVALID, 0), 0);
            assert_eq!(exs_close(self.receiver, 0, EXS_QHANDLE_INVALID, 0), 0);
            assert_eq!(exs_qdelete(self.queue), 0);
        }
    }
}

/// Waits for events: one at least, and `most` at most.
fn dequeue(queue: c_int, most: usize) -> Vec<Event> {
    // SAFETY: an event is plain numbers and pointers, of which none is followed.
    let mut events = vec![unsafe { zeroed::<Event>() }; most];
    let vec = Out::<Event>::named(events.as_mut_ptr() as u64);
    // SAFETY: room for `most` events.
    let got = unsafe {
        exs_qdequeue(queue, vec, c_int::try_from(most).unwrap(), In::from(Out::named(0)))
    };
    events.truncate(usize::try_from(got).unwrap());
    events
}

#[test]
fn threads_with_sockets_of_their_own_touch_nothing_of_the_process() {
    let thread = || {
        let mut ends = Ends::new();
        // What is set up once: the thread's locals, rings, registrations, and what it finds in tables.
        ends.flow(40 * DEPTH);
        // Other tests close sockets and queues meanwhile, after which a thread looks into the tables
        // again: once for each object, not for each operation.
        let touches = (0..20).map(|_| {
            let before = thread_touches();
            ends.flow(OPERATIONS);
            thread_touches() - before
        });
        let fewest = touches.take_while(|n| *n > 0).collect::<Vec<_>>();
        ends.close();
        fewest
    };
    let all: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|touches| touches.len() < 20), "{OPERATIONS} operations: {all:?}");
}
