//! Arbitrary bytes as EXS messages and hellos.
#![no_main]

use exs::wire::exs::{FURTHER, Hello, MAX_FURTHER, MAX_HEADER, MAX_HELLO, Message, Refusal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((message, piggyback, used)) = Message::parse(data) {
        assert!(used <= data.len(), "a header inside of its message");
        let mut out = [0; MAX_HEADER];
        let n = message.emit(piggyback, &mut out);
        // Data that follow the header count in its length, so they follow here.
        let mut again = out[..n].to_vec();
        again.extend_from_slice(&data[used..]);
        let (m, p, u) = Message::parse(&again).expect("what we emit parses");
        assert_eq!((m, p, u), (message, piggyback, n));
        if let Message::Advert(first) = message {
            let behind = data[used..].chunks_exact(FURTHER);
            assert!(behind.remainder().is_empty() && behind.len() <= MAX_FURTHER);
            let mut last = first;
            for raw in behind {
                let raw = raw.try_into().expect("a chunk of this length");
                let Ok(next) = last.parse_further(raw) else { break };
                assert_eq!(last.emit_further(&next).as_ref(), Some(raw));
                last = next;
            }
        }
    }
    if let Ok(hello) = Hello::parse(data) {
        let mut out = [0; MAX_HELLO];
        let n = hello.emit(&mut out);
        assert_eq!(Hello::parse(&out[..n]), Ok(hello));
    }
    if let Some(refusal) = Refusal::parse(data) {
        assert_eq!(Refusal::parse(&refusal.emit()), Some(refusal));
    }
});
