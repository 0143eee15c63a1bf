//! Arbitrary bytes as MPA start-up frames: through the codec, and into an
//! engine of either side, split at random.
#![no_main]

use exs::iwarp::{Config, IwarpEngine, IwarpEvent, RxResult, SendStep, TxPool};
use exs::mem::KeyTable;
use exs::wire::mpa::{EnhancedRepr, FRAME_LEN, FrameKind, FrameRepr};
use libfuzzer_sys::fuzz_target;

const CONFIG: Config = Config {
    qp: 1,
    pd: 1,
    crc: false,
    ird: 4,
    ord: 4,
    max_send_wr: 8,
    max_recv_wr: 8,
    uses_srq: false,
    mss: 1460,
    peer_to_peer: true,
};

/// Sends all that the engine has to send.
fn flush(engine: &mut IwarpEngine, pool: &mut TxPool) {
    loop {
        let mut n = 0;
        match engine.poll_tx(pool) {
            SendStep::Gather(gather) => gather.for_each(&mut |chunk| {
                if let exs::iwarp::GatherChunk::Bytes(bytes) = chunk {
                    n += bytes.len();
                }
            }),
            SendStep::Shutdown => {}
            SendStep::Idle | SendStep::File { .. } => return,
        }
        engine.handle_sent(n);
    }
}

fuzz_target!(|data: &[u8]| {
    if let Some(head) = data.first_chunk::<FRAME_LEN>() {
        for kind in [FrameKind::Request, FrameKind::Reply] {
            if let Ok(repr) = FrameRepr::parse(head, kind) {
                let again = FrameRepr::parse(&repr.emit(), kind).expect("what we emit parses");
                assert_eq!(repr, again);
            }
        }
        if let Ok(repr) = EnhancedRepr::parse(&data[FRAME_LEN..]) {
            assert_eq!(repr.emit(), data[FRAME_LEN..FRAME_LEN + 4]);
        }
    }
    let Some((&split, bytes)) = data.split_first() else { return };
    let (mut pool, mut keys) = (TxPool::new(), KeyTable::new());
    let initiator = IwarpEngine::initiator(CONFIG, b"private").expect("a small request");
    for mut engine in [initiator, IwarpEngine::responder()] {
        flush(&mut engine, &mut pool);
        for part in bytes.chunks(usize::from(split).max(1)) {
            let used = engine.handle_received(0, part, &mut keys, None);
            assert_eq!(used, RxResult { consumed: part.len(), stalled: false });
            while let Some(event) = engine.poll_event() {
                if let IwarpEvent::Request { .. } = event {
                    let answer = match split % 2 {
                        0 => engine.accept(CONFIG, b"answer"),
                        _ => engine.reject(b"answer"),
                    };
                    answer.expect("asked, so answered");
                }
            }
            flush(&mut engine, &mut pool);
        }
        engine.handle_eof();
        flush(&mut engine, &mut pool);
    }
});
