//! Channels over real sockets on loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exs::Host;
use exs_tools::road::Road;

use super::channel::{Channel, Intake};
use super::pipe::{Listener, Pipe};
use crate::error::CpError;
use crate::wire::frame::Frame;

fn pair() -> (Channel, Channel, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let road = Road::default();
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), &road).unwrap();
    let addr = listener.addr().unwrap();
    let dial = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            Pipe::connect(&Host::from_addresses([addr]), &road, &stop).unwrap()
        })
    };
    let accepted = loop {
        if let Some((_, pipe)) = listener.accept(Duration::from_secs(1)).unwrap() {
            break pipe.unwrap();
        }
    };
    let new = |pipe: Pipe| {
        let peer = pipe.peer();
        Channel::new(pipe, peer, Arc::clone(&stop)).unwrap()
    };
    (new(dial.join().unwrap()), new(accepted), stop)
}

fn warning(i: usize) -> Frame {
    Frame::Warn { error: false, text: format!("{i:08000}") }
}

/// More than a reader ever keeps, in frames that end anywhere in a buffer.
#[test]
fn a_long_answer_is_read_in_bounded_memory() {
    for intake in [Intake::Copy, Intake::Place] {
        let (mut a, mut b, _) = pair();
        let frames = 12_000;
        let sender = std::thread::spawn(move || {
            for i in 0..frames {
                a.send(&warning(i)).unwrap();
            }
            a.close().unwrap();
        });
        b.set_intake(intake).unwrap();
        for i in 0..frames {
            assert_eq!(b.frame().unwrap(), warning(i));
        }
        assert!(matches!(b.frame(), Err(CpError::Vanished { .. })));
        sender.join().unwrap();
    }
}

/// Raw data behind their header, across buffers, and frames behind them.
#[test]
fn data_and_frames_keep_their_order() {
    let (mut a, mut b, _) = pair();
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let mine = data.clone();
    let sender = std::thread::spawn(move || {
        let mut at = 0;
        while at < mine.len() {
            let slot = a.data_slot((mine.len() - at) as u64).unwrap();
            let n = slot.len();
            slot.copy_from_slice(&mine[at..at + n]);
            a.commit_data(at as u64, n).unwrap();
            at += n;
            a.send(&warning(at)).unwrap();
        }
        a.send(&Frame::Bye).unwrap();
        a.close().unwrap();
    });
    b.set_intake(Intake::Place).unwrap();
    let mut got = Vec::new();
    loop {
        match b.frame().unwrap() {
            Frame::Data { offset, len } => {
                assert_eq!(offset, got.len() as u64);
                let mut left = len as usize;
                while left > 0 {
                    let bytes = b.payload(left).unwrap();
                    got.extend_from_slice(&bytes);
                    b.consume(bytes.len()).unwrap();
                    left -= bytes.len();
                }
            }
            Frame::Bye => break,
            f => assert_eq!(f, warning(got.len())),
        }
    }
    assert!(got == data);
    sender.join().unwrap();
}

#[test]
fn a_silent_peer_and_a_signal_end_the_wait() {
    let (mut a, _b, stop) = pair();
    let silent = a.frame_within(Some(Duration::from_millis(1)));
    assert!(matches!(silent, Err(CpError::Silent { .. })));
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(a.frame(), Err(CpError::Interrupted)));
}
