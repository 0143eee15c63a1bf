//! Memory moves from a task to an operation, and back with the event. Here the table stands alone
//! between a task and a thread that takes the part of the driver. `make miri` runs these tests, too:
//! Miri sees a thread that touches memory of which another thread disposes.

use std::future::poll_fn;
use std::sync::Mutex;
use std::thread;

use super::*;
use crate::aio::block_on;
use crate::mem::{Buffer, MemoryRegion};
use crate::progress::{Bufs, EventKind, RawEvent};

const LEN: usize = 64;
const ROUNDS: usize = if cfg!(miri) { 16 } else { 2_000 };

#[test]
fn tokens_keep_slot_and_tag() {
    assert_eq!(split(token(0, 0)), (0, 0));
    assert_eq!(split(token(u32::MAX as usize, 7)), (u32::MAX as usize, 7));
    assert_eq!(split(token(12, u32::MAX)), (12, u32::MAX));
}

#[test]
fn the_last_use_frees_the_slot() {
    let uses = Uses::owned();
    uses.add();
    assert!(!uses.end());
    assert!(uses.end());
}

/// An operation in flight, as the engine holds it.
struct Posted {
    slot: usize,
    buffer: Buffer,
}

impl Posted {
    /// A receive into `buffer`, and its slot.
    fn new(slots: &Mutex<OperationSlots>, buffer: Buffer) -> (usize, Posted) {
        let slot = slots.lock().unwrap().insert();
        (slot, Posted { slot, buffer })
    }

    /// Writes the data of a peer into the memory, as an RNIC does.
    fn place(&self, byte: u8) {
        let segment = self.buffer.segment();
        segment.write_at(0, &vec![byte; segment.len()]);
    }

    /// Ends the operation: delivers its event, and wakes the task.
    fn end(self, slots: &Mutex<OperationSlots>) {
        let Posted { slot, buffer } = self;
        let bufs = Bufs::One(buffer);
        let event = RawEvent::with(token(slot, 0).0, [0; 2], EventKind::Recv, bufs).into();
        let delivered = slots.lock().unwrap().deliver(event);
        match delivered {
            Delivered::Wake(waker) => waker.into_iter().for_each(Waker::wake),
            Delivered::Unwanted(event) => drop(event),
            Delivered::Sink(..) => panic!("the slot belongs to an operation"),
        }
    }
}

#[test]
fn the_task_has_its_memory_back_with_the_event() {
    let region = MemoryRegion::new(LEN).unwrap();
    let slots = Mutex::new(OperationSlots::default());
    for round in 0..ROUNDS {
        let byte = u8::try_from(round % 256).unwrap();
        let (slot, posted) = Posted::new(&slots, region.buffer(..).unwrap());
        let bytes = thread::scope(|threads| {
            threads.spawn(|| {
                posted.place(byte);
                posted.end(&slots);
            });
            let event = block_on(poll_fn(|cx| slots.lock().unwrap().poll(slot, Some(cx))));
            let mut buffer = event.into_buffer().unwrap();
            let bytes = buffer.to_vec();
            buffer.fill(!byte);
            bytes
        });
        assert_eq!(bytes, [byte; LEN]);
    }
    assert!(slots.into_inner().unwrap().slab.is_empty());
}

/// The peer writes until the event, whatever became of the future. Then the memory is free.
#[test]
fn the_memory_of_a_dropped_future_stays_until_the_event() {
    let region = MemoryRegion::new(LEN).unwrap();
    let slots = Mutex::new(OperationSlots::default());
    let (slot, posted) = Posted::new(&slots, region.buffer(..).unwrap());
    assert!(slots.lock().unwrap().abandon(slot).is_none());
    region.buffer(..).expect_err("the peer may still write");
    posted.place(1);
    posted.end(&slots);
    assert_eq!(region.buffer(..).unwrap()[..], [1; LEN]);
    assert!(slots.into_inner().unwrap().slab.is_empty());
}

/// A future is dropped before its event, at the same moment, or after it.
#[test]
fn a_future_is_dropped_while_its_event_comes() {
    let region = MemoryRegion::new(LEN).unwrap();
    let slots = Mutex::new(OperationSlots::default());
    for round in 0..ROUNDS {
        let (slot, posted) = Posted::new(&slots, region.buffer(..).unwrap());
        thread::scope(|threads| {
            threads.spawn(|| {
                posted.place(2);
                posted.end(&slots);
            });
            let cx = &Context::from_waker(Waker::noop());
            let waits = round % 2 == 0 && slots.lock().unwrap().poll(slot, Some(cx)).is_pending();
            if waits || round % 2 == 1 {
                drop(slots.lock().unwrap().abandon(slot));
            }
        });
        assert_eq!(region.buffer(..).unwrap()[..], [2; LEN]);
    }
    assert!(slots.into_inner().unwrap().slab.is_empty());
}

/// Memory of the program's own, which no region keeps: only the operation does.
#[test]
fn a_vector_lives_until_the_event() {
    let slots = Mutex::new(OperationSlots::default());
    for _ in 0..ROUNDS {
        let (slot, posted) = Posted::new(&slots, Buffer::from(vec![0; LEN]));
        thread::scope(|threads| {
            threads.spawn(|| {
                posted.place(3);
                posted.end(&slots);
            });
            drop(slots.lock().unwrap().abandon(slot));
        });
    }
    assert!(slots.into_inner().unwrap().slab.is_empty());
}
