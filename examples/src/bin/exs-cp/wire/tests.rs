//! Vectors, round trips, and bytes that no honest peer sends.

use super::codec::WireError;
use super::frame::*;
use crate::disk::meta::{Kind, Meta, Stamp};
use crate::disk::relpath::{PathError, RelPath};

fn bytes(f: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    encode(f, &mut out);
    out
}

fn parse(b: &[u8]) -> Result<Frame, WireError> {
    let Some(h) = b.first_chunk::<HEADER>() else {
        return Err(WireError::Short { kind: 0, missing: HEADER - b.len() });
    };
    let head = parse_head(*h)?;
    let end = HEADER + head.body;
    let Some(body) = b.get(HEADER..end) else {
        return Err(WireError::Short { kind: head.kind, missing: end - b.len() });
    };
    decode(head, body)
}

fn path(s: &str) -> RelPath {
    RelPath::parse(s.as_bytes()).unwrap()
}

fn meta() -> Meta {
    Meta {
        kind: Kind::File,
        mode: 0o644,
        size: 0x0102_0304_0506,
        mtime: Stamp { seconds: -2, nanos: 999_999_999 },
        atime: Stamp { seconds: 3, nanos: 4 },
        ctime: Stamp { seconds: 5, nanos: 6 },
        ino: 7,
    }
}

fn have() -> Have {
    Have { what: What::Whole, chunks: vec![(0, [9; 32]), (5, [8; 32])] }
}

fn all() -> Vec<Frame> {
    let flags =
        Flags { verify: true, sync: true, compare: true, special: true, ..Flags::default() };
    vec![
        Frame::Hello { version: VERSION, token: true, nonce: [7; 32] },
        Frame::Proof([6; 32]),
        Frame::Refuse { text: "no".into() },
        Frame::List { path: RelPath::root() },
        Frame::Walk { path: path("a/b") },
        Frame::Put { into: path("in"), flags },
        Frame::Fetch { flags },
        Frame::Entry { path: path("x"), meta: meta(), target: b"../t".to_vec() },
        Frame::Warn { error: true, text: "skipped".into() },
        Frame::EndOfList,
        Frame::Offer { id: 1, path: path("x"), meta: meta() },
        Frame::Have { id: 1, have: have() },
        Frame::Want { id: 2, path: path("x"), source: meta(), have: have() },
        Frame::Begin { id: 2, meta: meta() },
        Frame::Data { offset: 1 << 40, len: 77 },
        Frame::Hole { offset: 4096, len: 1 << 33 },
        Frame::Chunk { index: 3, cv: [5; 32] },
        Frame::End { id: 2, hash: [4; 32] },
        Frame::Fail { id: 2, text: "changed".into() },
        Frame::Done { id: 2, ok: false, text: "disk full".into() },
        Frame::Link { id: 3, path: path("l"), meta: meta(), target: b"x".to_vec() },
        Frame::Dir { id: 4, path: path("d"), meta: meta() },
        Frame::Same { id: 5 },
        Frame::Busy,
        Frame::Bye,
    ]
}

#[test]
fn every_frame_comes_back() {
    for f in all() {
        assert_eq!(parse(&bytes(&f)).as_ref(), Ok(&f));
    }
}

#[test]
fn vectors() {
    let mut hello = b"\x01\0\0\0\0\0\0\x2bEXS-CP\r\n\0\x01\x01".to_vec();
    hello.extend_from_slice(&[7; 32]);
    assert_eq!(bytes(&all()[0]), hello);

    let mut offer = b"\x1e\0\0\0\0\0\0\x40\0\0\0\x01\0\x01x\x01\0\0\x01\xa4".to_vec();
    offer.extend_from_slice(b"\0\0\x01\x02\x03\x04\x05\x06");
    offer.extend_from_slice(b"\xff\xff\xff\xff\xff\xff\xff\xfe\x3b\x9a\xc9\xff");
    offer.extend_from_slice(b"\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0\x05\0\0\0\x06");
    offer.extend_from_slice(b"\0\0\0\0\0\0\0\x07");
    assert_eq!(bytes(&all()[10]), offer);

    let data = b"\x22\0\0\0\0\0\0\x55\0\0\x01\0\0\0\0\0";
    assert_eq!(bytes(&Frame::Data { offset: 1 << 40, len: 77 }), data);
    assert_eq!(data_header(1 << 40, 77), *data);
    assert_eq!(bytes(&Frame::Bye), b"\x32\0\0\0\0\0\0\0");
}

#[test]
fn hostile_names_do_not_parse() {
    for (name, why) in [
        ("../x", PathError::NotNormal),
        ("/etc/passwd", PathError::Absolute),
        ("a/../../x", PathError::NotNormal),
    ] {
        let mut b = b"\x0b\0\0\0\0\0\0\0\0".to_vec();
        let len = u8::try_from(name.len()).unwrap();
        b[7] = 2 + len;
        b.push(len);
        b.extend_from_slice(name.as_bytes());
        assert_eq!(parse(&b), Err(WireError::Path { kind: 11, cause: why }));
    }
}

/// Of 65,535 bytes and more, the length has 32 bits; shorter ones may not.
#[test]
fn long_paths_travel_whole() {
    for names in [2_045, 32_767, 32_768, 300_000] {
        let text = vec!["a"; names].join("/");
        let frame = Frame::Dir { id: 1, path: path(&text), meta: meta() };
        assert_eq!(parse(&bytes(&frame)).as_ref(), Ok(&frame), "{names} names");
    }
    let mut short = b"\x0b\0\0\0\0\0\0\x07\xff\xff\0\0\0\x01a".to_vec();
    assert!(matches!(parse(&short), Err(WireError::Value { field: "path length", .. })));
    short[9..14].copy_from_slice(&[0xff; 5]);
    assert!(matches!(parse(&short), Err(WireError::Short { .. })));
}

#[test]
fn lengths_and_values_are_limited() {
    assert_eq!(parse(b"\x63\0\0\0\0\0\0\0"), Err(WireError::UnknownType(99)));
    assert_eq!(
        parse(b"\x0a\0\0\0\xff\xff\xff\xff"),
        Err(WireError::TooLong { kind: 10, len: u32::MAX, limit: (1 << 20) + (128 << 10) })
    );
    assert_eq!(parse(b"\x22\0\0\0\0\0\0\x07"), Err(WireError::Short { kind: 34, missing: 1 }));
    assert!(matches!(parse(b"\x22\0\0\0\0\x10\0\x09"), Err(WireError::TooLong { .. })));
    assert!(matches!(parse(b"\x32\0\x01\0\0\0\0\0"), Err(WireError::Value { .. })));
    assert_eq!(parse(b"\x32\0\0\0\0\0\0\x01z"), Err(WireError::Long { kind: 50, extra: 1 }));
    let mut newer = bytes(&all()[0]);
    newer[17] = 2;
    assert_eq!(parse(&newer), Err(WireError::Version(2)));
    let mut http = bytes(&all()[0]);
    http[8] = b'G';
    assert_eq!(parse(&http), Err(WireError::Magic));
}

#[test]
fn chunk_lists_must_rise() {
    let twice = Have { what: What::Part, chunks: vec![(5, [0; 32]), (5, [0; 32])] };
    assert!(matches!(
        parse(&bytes(&Frame::Have { id: 0, have: twice })),
        Err(WireError::Value { field: "chunk", value: 5, .. })
    ));
    let many = (0..1 << 14).map(|i| (i, [1; 32])).collect();
    let full = Frame::Have { id: 0, have: Have { what: What::Part, chunks: many } };
    assert_eq!(parse(&bytes(&full)).as_ref(), Ok(&full));
}

/// Every truncation and every flipped byte of every frame: an error or a
/// frame, never a panic; and what is accepted is canonical.
#[test]
fn bent_frames_never_panic() {
    for f in all() {
        let good = bytes(&f);
        for n in 0..good.len() {
            let mut short = good[..n].to_vec();
            assert!(parse(&short).is_err(), "{f:?} cut at {n}");
            short.resize(good.len(), 0xff);
            let _ = parse(&short);
            for bit in 0..8 {
                let mut bent = good.clone();
                bent[n] ^= 1 << bit;
                match parse(&bent) {
                    // Texts are cleaned, and raw data lie behind the frame.
                    Err(_)
                    | Ok(
                        Frame::Refuse { .. }
                        | Frame::Warn { .. }
                        | Frame::Fail { .. }
                        | Frame::Done { .. }
                        | Frame::Data { .. },
                    ) => {}
                    Ok(g) => assert_eq!(bytes(&g), bent),
                }
            }
        }
    }
}

#[test]
fn long_texts_are_cut_between_characters() {
    let text = "ä".repeat(6000);
    let warn = Frame::Warn { error: false, text: text.clone() };
    let Ok(Frame::Warn { text: back, .. }) = parse(&bytes(&warn)) else {
        panic!("no warning came back");
    };
    assert!(back.len() <= MAX_TEXT && text.starts_with(&back) && back.len() > MAX_TEXT - 2);
}
