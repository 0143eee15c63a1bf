//! What a [`Buffer`] can be made from, and turned into.

use super::Buffer;
use super::raw::Region;

#[cfg(feature = "bytes")]
impl From<bytes::BytesMut> for Buffer {
    /// The bytes are not copied, wherever in their allocation they lie.
    fn from(bytes: bytes::BytesMut) -> Buffer {
        Buffer::from_region(Region::from_bytes_mut(bytes))
    }
}

impl From<Vec<u8>> for Buffer {
    /// The bytes are not copied.
    fn from(vec: Vec<u8>) -> Buffer {
        Buffer::from_region(Region::from_vec(vec))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<Box<[u8]>> for Buffer {
    /// The bytes are not copied.
    fn from(bytes: Box<[u8]>) -> Buffer {
        Buffer::from(bytes.into_vec())
    }
}

impl From<String> for Buffer {
    /// The text is not copied.
    fn from(text: String) -> Buffer {
        Buffer::from(text.into_bytes())
    }
}

impl<const N: usize> From<[u8; N]> for Buffer {
    /// The array moves into memory of its own, as `Vec::from` does.
    fn from(bytes: [u8; N]) -> Buffer {
        Buffer::from(Vec::from(bytes))
    }
}

impl From<Buffer> for Vec<u8> {
    /// As [`Buffer::into_vec`].
    fn from(buffer: Buffer) -> Vec<u8> {
        buffer.into_vec()
    }
}

#[cfg(feature = "bytes")]
impl From<bytes::Bytes> for Buffer {
    /// The bytes are copied only while other handles refer to them: the memory of an operation
    /// must be its own.
    fn from(bytes: bytes::Bytes) -> Buffer {
        match bytes.try_into_mut() {
            Ok(own) => Buffer::from(own),
            Err(shared) => Buffer::from(Vec::from(shared)),
        }
    }
}

#[cfg(feature = "bytes")]
impl From<Buffer> for bytes::Bytes {
    /// The window of the buffer, without a copy. The memory, and its lease of a
    /// [`MemoryRegion`](super::MemoryRegion), are free again when the last handle is dropped.
    fn from(buffer: Buffer) -> bytes::Bytes {
        bytes::Bytes::from_owner(buffer)
    }
}

#[cfg(feature = "bytes")]
impl From<Buffer> for bytes::BytesMut {
    /// The window of the buffer; without a copy if the buffer was made from a `BytesMut` or a
    /// vector and no other buffer refers to it.
    fn from(buffer: Buffer) -> bytes::BytesMut {
        let whole = match buffer.into_region().map(super::Region::into_bytes_mut) {
            Ok(Ok(own)) => return own,
            Ok(Err(region)) => Buffer::from_region(region).into_vec(),
            Err(copy) => copy,
        };
        bytes::BytesMut::from(bytes::Bytes::from(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_bytes_become_a_buffer_in_place() {
        let text = "some text".to_owned();
        let at = text.as_ptr();
        let buffer = Buffer::from(text);
        assert_eq!((buffer.as_ref().as_ptr(), buffer.as_ref()), (at, &b"some text"[..]));

        let boxed = vec![1u8, 2].into_boxed_slice();
        let at = boxed.as_ptr();
        let mut buffer = Buffer::from(boxed);
        buffer.as_mut()[0] = 7;
        let vec = Vec::from(buffer);
        assert_eq!((vec.as_ptr(), &vec[..]), (at, &[7, 2][..]));

        assert_eq!(&Buffer::from([1, 2, 3])[..], [1, 2, 3]);
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn bytes_are_copied_only_if_they_are_shared() {
        use bytes::{Bytes, BytesMut};

        let mut front = BytesMut::from(&b"front and back"[..]);
        let back = front.split_off(10);
        let at = back.as_ptr();
        let mut buffer = Buffer::from(back);
        buffer[0] = b'B';
        drop(front); // the other half of the same allocation
        assert_eq!((buffer.as_ptr(), &buffer[..]), (at, &b"Back"[..]));

        buffer.narrow(1..);
        let bytes = Bytes::from(buffer);
        assert_eq!((bytes.as_ptr(), &bytes[..]), (at.wrapping_add(1), &b"ack"[..]));

        let own = BytesMut::from(&b"own bytes"[..]);
        let at = own.as_ptr();
        let own = BytesMut::from(Buffer::from(own));
        assert_eq!((own.as_ptr(), &own[..]), (at, &b"own bytes"[..]));
        let mut part = Buffer::from(vec![1u8, 2, 3]);
        let at = part.as_ptr();
        part = BytesMut::from(part).into();
        assert_eq!((part.as_ptr(), &part[..]), (at, &[1, 2, 3][..]));
        part.narrow(1..);
        assert_eq!(BytesMut::from(part), [2, 3][..]);

        let only = Bytes::from(vec![5u8; 100]);
        let at = only.as_ptr();
        let buffer = Buffer::from(only);
        assert_eq!((buffer.as_ptr(), buffer.len()), (at, 100));

        let shared = Bytes::from(vec![6u8; 100]);
        let mut buffer = Buffer::from(shared.clone());
        buffer[0] = 7;
        assert_eq!((shared[0], buffer[0], buffer[99]), (6, 7, 6));
        assert!(Buffer::from(BytesMut::new()).is_empty());
    }
}
