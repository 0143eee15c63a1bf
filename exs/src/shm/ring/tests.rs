//! The shared memory of one connection: order, layout, and memory given back to the kernel.

use super::*;
use crate::shm::sleep::{FOR_END, FOR_RECORDS, FOR_ROOM};

#[test]
fn bytes_go_around_the_end() {
    let (a, b) = Mem::both([5, 6]);
    let pos = 7 * RING - 10;
    a.put(Area::Ring, pos, &IoVec::new(b"0123456789abcdef"));
    let mut got = [0; 16];
    b.get(Area::Ring, pos, &IoVecMut::new(&mut got));
    assert_eq!(&got, b"0123456789abcdef");
    b.put(Area::Lane, LANE - 1, &IoVec::new(b"xy"));
    a.get(Area::Lane, 5 * LANE - 1, &IoVecMut::new(&mut got[..2]));
    assert_eq!(&got[..2], b"xy");
}

#[test]
fn a_head_fills_its_line_up_to_the_word_in_which_it_ends() {
    let (a, b) = Mem::both([5, 6]);
    let (mut header, mut line) = ([0xAB; HEADER], [0; 56]);
    header[20..].fill(0);
    for pos in [LINE, 3 * RING - LINE] {
        a.put(Area::Ring, pos + 8, &IoVec::new(&[0xEE; 56]));
        a.put_head(pos, 0x0102_0304_0506_0708, &header, 20);
        b.get(Area::Ring, pos + 8, &IoVecMut::new(&mut line));
        let (word, rest) = line.split_at(8);
        assert_eq!(word, 0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert_eq!((&rest[..24], &rest[24..]), (&header[..24], &[0xEE; 24][..]));
        assert!(!b.has_record(pos), "the tag is for publish");
    }
}

/// The peer may wake and sleep again between our look at its mask and our bell.
#[test]
fn the_side_that_clears_a_wake_mask_rings() {
    let (a, b) = Mem::both([5, 6]);
    b.sleep_words().announce_sleep(FOR_RECORDS | FOR_ROOM);
    assert_eq!(
        [FOR_END, FOR_ROOM, FOR_RECORDS].map(|what| a.sleep_words().must_ring(what)),
        [0, FOR_RECORDS | FOR_ROOM, 0]
    );
    b.sleep_words().announce_sleep(FOR_RECORDS);
    assert_eq!(a.sleep_words().must_ring(FOR_ROOM), 0);
    assert_ne!(
        a.sleep_words().take_wake_mask(),
        0,
        "it wanted room at the first look, and wants records now"
    );
    assert_eq!(a.sleep_words().take_wake_mask(), 0);
}

#[test]
fn a_tag_is_of_one_lap_and_one_direction() {
    let (a, b) = Mem::both([40, 1 << 60]);
    for pos in [0, LINE, RING - LINE] {
        assert!(!b.has_record(pos));
        a.publish(pos);
        assert!(b.has_record(pos) && !b.has_record(pos + RING) && !a.has_record(pos));
    }
}

#[test]
fn everything_touched_first_lies_on_one_page() {
    let (a, b) = Mem::both([1, 2]);
    let page = |mem: &Mem, pos| {
        (mem.tag_word(MemSide::Ours, pos).as_ptr() as usize - mem.base.as_ptr() as usize) / PAGE
    };
    let first = a.word(MemSide::Theirs, Word::State).as_ptr() as usize - a.base.as_ptr() as usize;
    for pos in (0..NEAR as u64).step_by(64) {
        assert_eq!((page(&a, pos), page(&b, pos)), (first / PAGE, first / PAGE), "{pos}");
    }
    assert!(page(&a, NEAR as u64) > first / PAGE && page(&b, NEAR as u64) < first / PAGE);
}

#[cfg(not(miri))]
#[test]
fn a_trimmed_ring_costs_a_page_and_loses_nothing() {
    use std::os::fd::OwnedFd;
    let blocks = |fd: &OwnedFd| {
        let file = std::fs::File::from(fd.try_clone().unwrap());
        std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512
    };
    for side in 0..2 {
        let (slab, fd) = crate::sys::share(2 * Mem::LEN).unwrap();
        let slab = Arc::new(slab);
        let a = Mem::create(Arc::clone(&slab), 1, [7, 8]).unwrap();
        let b = Mem::open(slab, 1).unwrap();
        let (from, to) = if side == 0 { (&a, &b) } else { (&b, &a) };
        let fresh = blocks(&fd);
        let record = |pos: u64| [u8::try_from(pos / LINE % 251).unwrap(); 56];
        let put = |pos: u64| {
            from.put(Area::Ring, pos + 8, &IoVec::new(&record(pos)));
            from.publish(pos);
        };
        (0..3 * RING).step_by(64).for_each(put);
        assert!(blocks(&fd) >= fresh + RING - PAGE as u64);
        // The peer has yet to read the last three pages.
        let (done, end) = (3 * RING - 3 * PAGE as u64, 3 * RING);
        from.trim(done, end);
        assert!(blocks(&fd) <= fresh + 5 * PAGE as u64, "{}", blocks(&fd));
        let mut got = [0; 56];
        for pos in (done..end).step_by(64) {
            assert!(to.has_record(pos));
            to.get(Area::Ring, pos + 8, &IoVecMut::new(&mut got));
            assert_eq!(got, record(pos), "side {side}, {pos}");
        }
        assert!(!to.has_record(end));
        put(end);
        assert!(to.has_record(end));
        from.trim(end + LINE, end + LINE);
        assert!(blocks(&fd) <= fresh + 2 * PAGE as u64, "{}", blocks(&fd));
    }
}

#[test]
fn another_layout_is_refused() {
    let (a, mut b) = Mem::both([1, 2]);
    for i in 0..GEOMETRY.len() {
        a.word_at(HEAD + 8 * i).store(77, Ordering::Release);
        assert!(b.check_geometry().is_err(), "word {i}");
        a.set_geometry();
        b.check_geometry().unwrap();
    }
}

/// One thread sends records of a few lines to another, which sleeps until a bell whenever it finds
/// none. Miri checks every access.
#[test]
fn publishing_between_threads_loses_nothing() {
    const RECORDS: u64 = if cfg!(miri) { 200 } else { 100_000 };
    let (a, b) = Mem::both([0x1234, 0x5678]);
    let (bell, wait) = std::sync::mpsc::channel::<()>();
    let producer = std::thread::spawn(move || {
        for n in 0..RECORDS {
            let pos = n * 2 * LINE;
            while pos + 2 * LINE - a.theirs(Word::Consumed) > RING {
                std::thread::yield_now();
            }
            let words = [n.to_ne_bytes(); 14].concat();
            if n.is_multiple_of(2) {
                a.put(Area::Ring, pos + 8, &IoVec::new(&words));
            } else {
                a.put_head(pos, n, words.first_chunk().unwrap(), HEADER);
                a.put(Area::Ring, pos + LINE, &IoVec::new(&words[..7 * 8]));
            }
            a.publish(pos);
            if a.sleep_words().must_ring(1) != 0 {
                bell.send(()).unwrap();
            }
        }
    });
    for n in 0..RECORDS {
        let pos = n * 2 * LINE;
        while !b.has_record(pos) {
            b.sleep_words().announce_sleep(1);
            if b.has_record(pos) {
                b.sleep_words().announce_awake();
            } else {
                wait.recv().expect("a bell: it was not lost");
            }
            // A bell that rang during the look has no further use.
            while wait.try_recv().is_ok() {}
        }
        let mut got = [0; 112];
        b.get(Area::Ring, pos + 8, &IoVecMut::new(&mut got));
        assert!(got.chunks(8).all(|c| c == n.to_ne_bytes()), "record {n}: {got:?}");
        b.set(Word::Consumed, pos + 2 * LINE);
    }
    producer.join().unwrap();
}
