use super::*;
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        versions: (1, 1),
        kind: SocketKind::SeqPacket,
        features: 0x0000_0005,
        credits: 64,
        most: 0x0102,
        slot: 0x1000,
        ring: 0x0010_0000,
        max_msg: 0x1_0000_0000,
    }
}

fn emitted(h: &Hello) -> Vec<u8> {
    let mut out = [0xAA; MAX_HELLO];
    let n = h.emit(&mut out);
    assert!(out[n..].iter().all(|b| *b == 0xAA), "wrote past its end");
    out[..n].to_vec()
}

#[rustfmt::skip]
const HELLO_BYTES: [u8; HELLO_LEN] = [
    b'E', b'X', b'S', b'H', 1, 1, 2, 0,
    0, 0, 0, 5,  0, 64, 1, 2,
    0, 0, 0x10, 0,  0, 0x10, 0, 0,
    0, 0, 0, 1, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn hello_vector() {
    assert_eq!(emitted(&hello()), HELLO_BYTES);
    assert_eq!(Hello::parse(&HELLO_BYTES), Ok(hello()));
    let stream = Hello { kind: SocketKind::Stream, ..hello() };
    assert_eq!(emitted(&stream)[6], 1);
}

#[test]
fn hello_ignores_padding_and_reserved_bytes() {
    let mut padded = [0x5A; MAX_HELLO];
    padded[..HELLO_LEN].copy_from_slice(&HELLO_BYTES);
    for reserved in [7, 32, 39] {
        padded[reserved] = 0xFF;
    }
    assert_eq!(Hello::parse(&padded), Ok(hello()));
}

#[test]
fn hello_errors_say_what_is_wrong() {
    assert_eq!(Hello::parse(b""), Err(HelloError::NotExs));
    assert_eq!(Hello::parse(b"GET / HTTP/1.1\r\n"), Err(HelloError::NotExs));
    for len in 4..HELLO_LEN {
        let got = Hello::parse(&HELLO_BYTES[..len]);
        assert_eq!(got, Err(HelloError::Truncated { len, need: HELLO_LEN }));
    }
    let mut b = HELLO_BYTES;
    b[6] = 9;
    assert_eq!(Hello::parse(&b), Err(HelloError::UnknownKind { code: 9 }));
    // An unknown version comes first: its other fields may mean anything.
    (b[4], b[5]) = (2, 3);
    let version = HelloError::Version { first: 2, last: 3 };
    assert_eq!(Hello::parse(&b[..8]), Err(version));
    assert_eq!(version.refusal().code, RefusalCode::VersionUnsupported);
    assert!(version.to_string().contains("versions 2 to 3, this side 1 to 1"), "{version}");
    (b[4], b[5]) = (1, 0);
    assert_eq!(Hello::parse(&b), Err(HelloError::Version { first: 1, last: 0 }));
}

#[test]
fn refusal_vector() {
    let r = Refusal { code: RefusalCode::KindMismatch, versions: (1, 4) };
    let bytes = [b'E', b'X', b'S', b'R', 1, 4, 3, 0];
    assert_eq!(r.emit(), bytes);
    let mut padded = [0u8; 148];
    padded[..8].copy_from_slice(&bytes);
    assert_eq!(Refusal::parse(&padded), Some(r));
    assert_eq!(Refusal::parse(&bytes[..7]), None);
    assert_eq!(Refusal::parse(&HELLO_BYTES), None);
    for code in 0..=u8::MAX {
        let code_enum = RefusalCode::from_code(code);
        assert_eq!(code_enum.code(), code);
        let r = Refusal { code: code_enum, versions: (1, 1) };
        assert_eq!(Refusal::parse(&r.emit()), Some(r));
        assert!(!r.to_string().is_empty());
    }
}

#[test]
fn negotiation() {
    let ours = Hello { versions: (1, 3), features: 0b0110, ..hello() };
    let theirs = Hello { versions: (2, 5), features: 0x8000_0011 | 0b0010, ..hello() };
    let agreed = Negotiated { version: 3, features: 0b0010 };
    assert_eq!(negotiate(&ours, &theirs), Ok(agreed));
    assert_eq!(negotiate(&theirs, &ours), Ok(agreed));

    let refused = |code| Err(Refusal { code, versions: (1, 3) });
    let newer = Hello { versions: (4, 5), ..hello() };
    assert_eq!(negotiate(&ours, &newer), refused(RefusalCode::VersionUnsupported));
    let zero = Hello { versions: (0, 0), ..hello() };
    assert!(negotiate(&zero, &zero).is_err());
    let stream = Hello { kind: SocketKind::Stream, ..hello() };
    assert_eq!(negotiate(&ours, &stream), refused(RefusalCode::KindMismatch));
    let few = Hello { credits: MIN_CREDITS - 1, ..hello() };
    assert_eq!(negotiate(&ours, &few), refused(RefusalCode::LimitsTooSmall));
    let small = Hello { slot: 47, ..hello() };
    assert_eq!(negotiate(&ours, &small), refused(RefusalCode::LimitsTooSmall));
    assert!(negotiate(&ours, &Hello { slot: 48, ..hello() }).is_ok());
}

const PB: Piggyback = Piggyback { credits: 0x0102, freed: 0x0304_0506 };

/// A message, and its bytes: kind and flags, len, aux, and what follows.
type Vector = (Message, [u8; 2], u32, u32, Vec<u8>);

#[rustfmt::skip]
fn vectors() -> Vec<Vector> {
    let advert = AdvertRepr {
        seq: 0x1112_1314_1516_1718, phase: 4, addr: 0x2122_2324_2526_2728,
        key: 0x3132_3334, len: 0x4142_4344, waitall: true, invalidate: false,
    };
    vec![
        (Message::Ready,       [1, 0],  0, 0, vec![]),
        (Message::Credit,      [2, 0],  0, 0, vec![]),
        (Message::Ping,        [3, 0],  0, 0, vec![]),
        (Message::Pong,        [4, 0],  0, 0, vec![]),
        (Message::Close,       [5, 0],  0, 0, vec![]),
        (Message::CloseAck,    [6, 0],  0, 0, vec![]),
        (Message::Abort { code: 0xC0DE }, [7, 0], 0, 0xC0DE, vec![]),
        (Message::Fin,         [8, 0],  0, 0, vec![]),
        (Message::Confirm { number: 0xFFFF_FFFE },   [9, 0],  0, 0xFFFF_FFFE, vec![]),
        (Message::Confirmed { number: 0x0102_0304 }, [10, 0], 0, 0x0102_0304, vec![]),
        (Message::More,        [11, 0], 0, 0, vec![]),
        (Message::Use { messages: 0x0102_0304 },     [12, 0], 0, 0x0102_0304, vec![]),
        (Message::Data { direct: false, inline: false, len: 7 }, [16, 0], 7, 0, vec![]),
        (Message::Data { direct: true, inline: false, len: 7 },  [16, 1], 7, 0, vec![]),
        (Message::Data { direct: false, inline: true, len: 3 },  [16, 2], 3, 0, vec![]),
        (Message::Data { direct: true, inline: true, len: 3 },   [16, 3], 3, 0, vec![]),
        (Message::Advert(AdvertRepr { waitall: false, invalidate: true, ..advert }), [17, 2], 0x4142_4344, 0x3132_3334, vec![
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0, 0, 0, 4]),
        (Message::Advert(advert), [17, 1], 0x4142_4344, 0x3132_3334, vec![
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0, 0, 0, 4]),
        (Message::RingReq,     [18, 0], 0, 0, vec![]),
        (Message::Ring { addr: 0x2122_2324_2526_2728, key: 5 }, [19, 0], 0, 5,
            vec![0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]),
        (Message::RingRelease, [20, 0], 0, 0, vec![]),
        (Message::Withdraw { generation: 9 }, [21, 0], 0, 9, vec![]),
        (Message::Withdrawn { generation: 9, next_msg: 10 }, [22, 0], 0, 9,
            vec![0, 0, 0, 0, 0, 0, 0, 10]),
        (Message::Eager { len: 2 }, [32, 0], 2, 0, vec![]),
        (Message::Rts { msg: 1, total: 0x0203_0405_0607_0809 }, [33, 0], 0, 0, vec![
            0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Message::PacketAdvert { msg: 1, generation: 2, addr: 3, key: 4, len: 5 }, [34, 0], 0, 4, vec![
            0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3,
            0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2]),
        (Message::PacketData { len: 6, total: 0x1_0000_0000 }, [35, 0], 0, 0, vec![
            0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 0]),
    ]
}

fn message_bytes(m: &Message, pb: Piggyback) -> Vec<u8> {
    let mut out = [0xAA; MAX_HEADER];
    let n = m.emit(pb, &mut out);
    assert!(out[n..].iter().all(|b| *b == 0xAA), "wrote past its end");
    out[..n].to_vec()
}

#[test]
fn message_vectors() {
    let mut seen = std::collections::HashSet::new();
    for (message, start, len, aux, rest) in vectors() {
        seen.insert(message.kind());
        let mut bytes = start.to_vec();
        bytes.extend([1, 2, 3, 4, 5, 6]);
        bytes.extend(len.to_be_bytes());
        bytes.extend(aux.to_be_bytes());
        bytes.extend(rest);
        assert_eq!(message_bytes(&message, PB), bytes, "{message:?}");
        let header = bytes.len();
        bytes.resize(header + message.inline_len() as usize, 0xEE);
        assert_eq!(Message::parse(&bytes), Ok((message, PB, header)));
    }
    assert_eq!(seen.len(), MessageKind::ALL.len(), "a kind without a vector");
}

#[test]
fn message_lengths_are_exact() {
    for (message, ..) in vectors() {
        let mut bytes = message_bytes(&message, PB);
        let kind = message.kind();
        bytes.resize(bytes.len() + message.inline_len() as usize, 0);
        for len in 0..bytes.len() {
            assert!(Message::parse(&bytes[..len]).is_err(), "{kind:?} cut to {len}");
        }
        bytes.push(0);
        let expected = bytes.len() as u64 - 1;
        let want = MessageError::Length { kind, len: bytes.len(), expected };
        assert_eq!(Message::parse(&bytes), Err(want));
    }
}

/// Thirteen receives at most behind an ADVERT, and nothing else.
#[test]
fn further_receives_behind_an_advert() {
    let first = AdvertRepr {
        seq: u64::MAX - 1,
        phase: 4,
        addr: 1,
        key: 2,
        len: 5,
        waitall: true,
        invalidate: true,
    };
    let next =
        AdvertRepr { seq: 3, addr: 0x2122_2324_2526_2728, key: 0x3132_3334, len: 7, ..first };
    let raw: [u8; FURTHER] =
        [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 0, 0, 7];
    assert_eq!(first.emit_further(&next), Some(raw));
    assert_eq!(first.parse_further(&raw), Ok(next));
    for other in [
        AdvertRepr { seq: 4, ..next },
        AdvertRepr { phase: 6, ..next },
        AdvertRepr { waitall: false, ..next },
        AdvertRepr { invalidate: false, ..next },
    ] {
        assert_eq!(first.emit_further(&other), None, "{other:?}");
    }
    let mut wraps = [0xFF; FURTHER];
    wraps[12..].copy_from_slice(&[0, 0, 0, 1]);
    let error = MessageError::Wraps { addr: u64::MAX, len: 1 };
    assert_eq!(first.parse_further(&wraps), Err(error));

    let message = Message::Advert(first);
    let header = message_bytes(&message, PB);
    for n in 0..=MAX_FURTHER + 1 {
        for odd in [0, 1, 15] {
            let mut bytes = header.clone();
            bytes.extend(raw.repeat(n));
            bytes.resize(bytes.len() + odd, 0);
            let parsed = Message::parse(&bytes);
            if odd == 0 && n <= MAX_FURTHER {
                assert_eq!(parsed, Ok((message, PB, header.len())));
            } else {
                assert!(matches!(parsed, Err(MessageError::Length { .. })), "{n} and {odd} bytes");
            }
        }
    }
}

#[test]
fn message_errors() {
    let with = |m: Message, at: usize, value: u8| {
        let mut bytes = message_bytes(&m, PB);
        bytes[at] = value;
        Message::parse(&bytes)
    };
    assert_eq!(with(Message::Fin, 0, 0), Err(MessageError::UnknownKind { kind: 0 }));
    assert_eq!(with(Message::Fin, 0, 99), Err(MessageError::UnknownKind { kind: 99 }));
    let flags = |kind, flags| Err(MessageError::UnknownFlags { kind, flags });
    assert_eq!(with(Message::Fin, 1, 1), flags(MessageKind::Fin, 1));
    let data = Message::Data { direct: true, inline: false, len: 1 };
    assert_eq!(with(data, 1, 5), flags(MessageKind::Data, 5));
    let zero = |kind, value| Err(MessageError::NotZero { kind, value });
    assert_eq!(with(Message::Fin, 11, 3), zero(MessageKind::Fin, 3));
    assert_eq!(with(data, 15, 3), zero(MessageKind::Data, 3));
    let advert =
        Message::PacketAdvert { msg: 0, generation: 0, addr: u64::MAX - 4, key: 0, len: 4 };
    assert!(with(advert, 0, 34).is_ok());
    let wraps = Err(MessageError::Wraps { addr: u64::MAX - 4, len: 5 });
    assert_eq!(with(advert, 39, 5), wraps);
}

#[test]
fn immediate_vectors() {
    let direct = Immediate { direct: true, len: 5 };
    assert_eq!(direct.emit(), Some(0x8000_0005));
    assert_eq!(Immediate::parse(0x8000_0005), direct);
    let longest = Immediate { direct: false, len: Immediate::MAX_LEN };
    assert_eq!(longest.emit(), Some(0x7FFF_FFFF));
    assert_eq!(Immediate { direct: false, len: 1 << 31 }.emit(), None);
    assert_eq!(Immediate { direct: true, len: u32::MAX }.emit(), None);
}

fn any_message() -> impl Strategy<Value = Message> {
    let words = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    (0..MessageKind::ALL.len(), words, any::<bool>(), any::<bool>()).prop_map(
        |(kind, (a, b, c, d, e), p, q)| match MessageKind::ALL[kind] {
            MessageKind::Ready => Message::Ready,
            MessageKind::Credit => Message::Credit,
            MessageKind::Ping => Message::Ping,
            MessageKind::Pong => Message::Pong,
            MessageKind::Close => Message::Close,
            MessageKind::CloseAck => Message::CloseAck,
            MessageKind::Abort => Message::Abort { code: d },
            MessageKind::Fin => Message::Fin,
            MessageKind::Confirm => Message::Confirm { number: d },
            MessageKind::Confirmed => Message::Confirmed { number: d },
            MessageKind::More => Message::More,
            MessageKind::Use => Message::Use { messages: d },
            MessageKind::Data => {
                Message::Data { direct: p, inline: q, len: if q { d % 300 } else { d } }
            }
            MessageKind::Advert => Message::Advert(AdvertRepr {
                seq: a,
                phase: d,
                addr: b >> 1,
                key: e,
                len: u32::try_from(c & 0xFFFF_FFFF).unwrap_or(0),
                waitall: p,
                invalidate: q,
            }),
            MessageKind::RingReq => Message::RingReq,
            MessageKind::Ring => Message::Ring { addr: a, key: d },
            MessageKind::RingRelease => Message::RingRelease,
            MessageKind::Withdraw => Message::Withdraw { generation: d },
            MessageKind::Withdrawn => Message::Withdrawn { generation: d, next_msg: a },
            MessageKind::Eager => Message::Eager { len: d % 300 },
            MessageKind::Rts => Message::Rts { msg: a, total: b },
            MessageKind::PacketAdvert => {
                let (addr, len) = (b >> 1, c >> 1);
                Message::PacketAdvert { msg: a, generation: d, addr, key: e, len }
            }
            MessageKind::PacketData => Message::PacketData { len: a, total: b },
        },
    )
}

/// Bytes that look like messages more often than noise does.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![any::<u8>(), 0..40u8];
    (kind, 0..4u8, prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..64)).prop_map(
        |(kind, flags, rest)| {
            let mut bytes = vec![kind, flags];
            bytes.extend(rest);
            bytes
        },
    )
}

proptest! {
    #[test]
    fn message_round_trip(m in any_message(), credits: u16, freed: u32) {
        let pb = Piggyback { credits, freed };
        let mut bytes = message_bytes(&m, pb);
        let header = bytes.len();
        prop_assert_eq!(header, m.kind().header_len());
        bytes.resize(header + m.inline_len() as usize, 0x77);
        prop_assert_eq!(Message::parse(&bytes), Ok((m, pb, header)));
    }

    #[test]
    fn message_parse_is_the_inverse_of_emit(bytes in any_bytes()) {
        if let Ok((m, pb, header)) = Message::parse(&bytes) {
            prop_assert_eq!(&message_bytes(&m, pb)[..], &bytes[..header]);
            let behind = bytes.len() - header - m.inline_len() as usize;
            let further = m.kind() == MessageKind::Advert && behind.is_multiple_of(FURTHER);
            prop_assert!(behind == 0 || further);
        }
    }

    /// The short way of DATA and EAGER takes just those that the long one takes, and as the same.
    #[test]
    fn the_fast_path_of_data_agrees_with_the_general_one(
        kind in prop_oneof![
            Just(MessageKind::Data as u8),
            Just(MessageKind::Eager as u8),
            any::<u8>(),
        ],
        flags in prop_oneof![0u8..4, any::<u8>()],
        pb: [u8; 6],
        len in prop_oneof![0u32..4, any::<u32>()],
        aux in prop_oneof![Just(0u32), any::<u32>()],
        there in 0usize..64,
        more in -1i64..3,
    ) {
        let mut bytes = vec![kind, flags];
        bytes.extend(pb);
        bytes.extend(len.to_be_bytes());
        bytes.extend(aux.to_be_bytes());
        bytes.resize(there, 0);
        let inline = if kind == MessageKind::Eager as u8 { 1 } else { flags >> 1 & 1 };
        let whole = usize::try_from(16 + i64::from(len) * i64::from(inline) + more).unwrap();
        let short = Message::parse_data(&bytes, whole).map(|(m, pb)| (m, pb, 16));
        let long = Message::parse_any(&bytes, whole).ok();
        let of_these = |kind| matches!(kind, MessageKind::Data | MessageKind::Eager);
        prop_assert_eq!(short, long.filter(|(m, ..)| of_these(m.kind())));
        prop_assert_eq!(Message::parse_prefix(&bytes, whole), Message::parse_any(&bytes, whole));
    }

    #[test]
    fn parse_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = Message::parse(&bytes);
        let _ = Hello::parse(&bytes);
        let _ = Refusal::parse(&bytes);
        let mut hello = HELLO_BYTES.to_vec();
        hello.truncate(4);
        hello.extend(&bytes);
        let _ = Hello::parse(&hello);
    }

    #[test]
    fn hello_round_trip(
        last in 1..=u8::MAX, stream: bool, features: u32, credits: u16, most: u16, slot: u32,
        ring: u32, max_msg: u64,
    ) {
        let kind = if stream { SocketKind::Stream } else { SocketKind::SeqPacket };
        let h = Hello { versions: (1, last), kind, features, credits, most, slot, ring, max_msg };
        prop_assert_eq!(Hello::parse(&emitted(&h)), Ok(h));
    }

    #[test]
    fn immediate_round_trip(imm: u32) {
        prop_assert_eq!(Immediate::parse(imm).emit(), Some(imm));
    }
}
