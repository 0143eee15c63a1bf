//! The protocol by hand, for peers that do what exs-cp never would. Written
//! from the protocol's description, not with exs-cp's own code.

use exs::Socket;

/// One frame: type, three zeros, length, body.
pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut f = vec![kind, 0, 0, 0];
    f.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    f.extend_from_slice(body);
    f
}

/// Bytes behind a 16-bit length, as names and texts are.
pub fn bytes(b: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(b.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(b);
    out
}

/// Kind (1 file, 2 directory, 3 link), mode, size; times and inode are zero.
pub fn meta(kind: u8, mode: u32, size: u64) -> Vec<u8> {
    let mut m = vec![kind];
    m.extend_from_slice(&mode.to_be_bytes());
    m.extend_from_slice(&size.to_be_bytes());
    m.resize(57, 0);
    m
}

pub fn hello() -> Vec<u8> {
    frame(1, &[b"EXS-CP\r\n\0\x01\0", &[7; 32][..]].concat())
}
pub fn put_request(into: &[u8]) -> Vec<u8> {
    frame(12, &[bytes(into), vec![1]].concat())
}
pub fn walk_request(path: &[u8]) -> Vec<u8> {
    frame(11, &bytes(path))
}
pub fn offer(id: u32, path: &[u8], size: u64) -> Vec<u8> {
    frame(30, &[&id.to_be_bytes()[..], &bytes(path), &meta(1, 0o644, size)].concat())
}
pub fn begin(id: u32, size: u64) -> Vec<u8> {
    frame(33, &[&id.to_be_bytes()[..], &meta(1, 0o644, size)].concat())
}
pub fn data(offset: u64, raw: &[u8]) -> Vec<u8> {
    frame(34, &[&offset.to_be_bytes()[..], raw].concat())
}
pub fn hole(offset: u64, len: u64) -> Vec<u8> {
    frame(35, &[offset.to_be_bytes(), len.to_be_bytes()].concat())
}
pub fn chunk(index: u32, cv: [u8; 32]) -> Vec<u8> {
    frame(36, &[&index.to_be_bytes()[..], &cv].concat())
}
pub fn end(id: u32, hash: [u8; 32]) -> Vec<u8> {
    frame(37, &[&id.to_be_bytes()[..], &hash].concat())
}
pub fn link(id: u32, path: &[u8], target: &[u8]) -> Vec<u8> {
    let (path, target) = (bytes(path), bytes(target));
    frame(40, &[&id.to_be_bytes()[..], &path, &meta(3, 0o777, 0), &target].concat())
}
pub fn dir(id: u32, path: &[u8]) -> Vec<u8> {
    frame(41, &[&id.to_be_bytes()[..], &bytes(path), &meta(2, 0o777, 0)].concat())
}
pub fn entry(kind: u8, path: &[u8], target: &[u8]) -> Vec<u8> {
    frame(20, &[bytes(path), meta(kind, 0o755, 4), bytes(target)].concat())
}
pub fn end_of_list() -> Vec<u8> {
    frame(22, &[])
}
pub fn bye() -> Vec<u8> {
    frame(50, &[])
}

/// Answers of a server: it has nothing of a file; and what became of one.
pub fn have_none(id: u32) -> Vec<u8> {
    frame(HAVE, &[&id.to_be_bytes()[..], &[0], &0u32.to_be_bytes()].concat())
}
pub fn done(id: u32, ok: bool) -> Vec<u8> {
    frame(DONE, &[&id.to_be_bytes()[..], &[u8::from(ok)], &bytes(b"")].concat())
}

pub const OFFER: u8 = 30;
pub const DATA: u8 = 34;
pub const END: u8 = 37;
pub const FAIL: u8 = 38;
pub const SAME: u8 = 42;
pub const BYE: u8 = 50;
pub const HAVE: u8 = 31;
pub const DONE: u8 = 39;
pub const REFUSE: u8 = 3;
pub const HELLO: u8 = 1;

/// The next frame, or `None` when the peer has ended the connection.
pub fn read(s: &Socket) -> Option<(u8, Vec<u8>)> {
    let mut h = [0; 8];
    s.blocking().recv_exact(&mut h).ok()?;
    let mut body = vec![0; u32::from_be_bytes([h[4], h[5], h[6], h[7]]) as usize];
    if !body.is_empty() {
        s.blocking().recv_exact(&mut body).ok()?;
    }
    Some((h[0], body))
}

/// A listener on a port of the system's choice.
pub fn listen() -> (Socket, String) {
    let listener = Socket::stream().unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(4).unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, addr)
}

/// Connects and exchanges hellos.
pub fn connect(addr: &str) -> Socket {
    let s = Socket::stream().unwrap();
    s.blocking().connect(addr).unwrap();
    s.blocking().send_all(&hello()).unwrap();
    assert_eq!(read(&s).unwrap().0, HELLO);
    s
}

/// Sends all of it at once, and reads until the connection ends or a frame
/// answers that this looks for.
pub fn exchange(s: &Socket, frames: &[Vec<u8>], last: u8) -> Vec<(u8, Vec<u8>)> {
    s.blocking().send_all(&frames.concat()).unwrap();
    let mut seen = Vec::new();
    while let Some(f) = read(s) {
        seen.push(f);
        if seen.last().is_some_and(|f| f.0 == last) {
            break;
        }
    }
    seen
}
