//! The memory that an operation takes and gives back.

use crate::api::Buffer;

/// Bytes that move into a send, or into an RDMA WRITE, and come back with its result.
///
/// While the operation is in flight the library owns the bytes. So no reference to them exists that
/// a peer's access could break, even if the program drops the future. The trait converts to a
/// [`Buffer`] and back, and it is safe to implement.
///
/// | type | cost |
/// |---|---|
/// | [`Buffer`] | none. The buffers of a [`MemoryRegion`](crate::MemoryRegion) stay registered |
/// | `Vec<u8>`, `Box<[u8]>` | no copy; two small allocations |
/// | `Bytes`, `BytesMut` (feature `bytes`) | no copy, unless other handles refer to the same `Bytes` |
/// | `&'static [u8]`, `&'static str` | a copy |
///
/// Larger memory that is no region is registered for the operation.
///
/// ```
/// use exs::aio::IoBuf;
/// let (buffer, rest) = vec![1u8, 2, 3].into_buffer();
/// assert_eq!(&buffer[..], [1, 2, 3]);
/// assert_eq!(Vec::from_buffer(buffer, rest), [1, 2, 3]);
/// ```
pub trait IoBuf: Send + Sized + 'static {
    /// The part of the value that stays with the future, to make the value again.
    type Rest: Send + Unpin + 'static;

    /// Gives the bytes to an operation.
    fn into_buffer(self) -> (Buffer, Self::Rest);

    /// Makes the value again. The window of `buffer` is that of [`IoBuf::into_buffer`].
    fn from_buffer(buffer: Buffer, rest: Self::Rest) -> Self;
}

/// Bytes that a receive, or an RDMA READ, can fill: as many as the value has. Its length does not
/// change. The result of the operation says how many bytes were filled from the start.
pub trait IoBufMut: IoBuf {}

impl IoBuf for Buffer {
    type Rest = ();

    fn into_buffer(self) -> (Buffer, ()) {
        (self, ())
    }

    fn from_buffer(buffer: Buffer, (): ()) -> Buffer {
        buffer
    }
}

impl IoBufMut for Buffer {}

impl IoBuf for Vec<u8> {
    type Rest = ();

    fn into_buffer(self) -> (Buffer, ()) {
        (Buffer::from(self), ())
    }

    fn from_buffer(buffer: Buffer, (): ()) -> Vec<u8> {
        buffer.into_vec()
    }
}

impl IoBufMut for Vec<u8> {}

impl IoBuf for Box<[u8]> {
    type Rest = ();

    fn into_buffer(self) -> (Buffer, ()) {
        (Buffer::from(self), ())
    }

    fn from_buffer(buffer: Buffer, (): ()) -> Box<[u8]> {
        buffer.into_vec().into_boxed_slice()
    }
}

impl IoBufMut for Box<[u8]> {}

impl IoBuf for &'static [u8] {
    type Rest = &'static [u8];

    fn into_buffer(self) -> (Buffer, &'static [u8]) {
        (Buffer::copy_from_slice(self), self)
    }

    fn from_buffer(_: Buffer, rest: &'static [u8]) -> &'static [u8] {
        rest
    }
}

impl IoBuf for &'static str {
    type Rest = &'static str;

    fn into_buffer(self) -> (Buffer, &'static str) {
        (Buffer::copy_from_slice(self.as_bytes()), self)
    }

    fn from_buffer(_: Buffer, rest: &'static str) -> &'static str {
        rest
    }
}

#[cfg(feature = "bytes")]
impl IoBuf for bytes::Bytes {
    /// The value itself, if other handles refer to the bytes, so that they were copied.
    type Rest = Option<bytes::Bytes>;

    fn into_buffer(self) -> (Buffer, Option<bytes::Bytes>) {
        match self.try_into_mut() {
            Ok(own) => (Buffer::from(own), None),
            Err(shared) => (Buffer::copy_from_slice(&shared), Some(shared)),
        }
    }

    fn from_buffer(buffer: Buffer, rest: Option<bytes::Bytes>) -> bytes::Bytes {
        rest.unwrap_or_else(|| bytes::Bytes::from(buffer))
    }
}

#[cfg(feature = "bytes")]
impl IoBuf for bytes::BytesMut {
    type Rest = ();

    fn into_buffer(self) -> (Buffer, ()) {
        (Buffer::from(self), ())
    }

    fn from_buffer(buffer: Buffer, (): ()) -> bytes::BytesMut {
        bytes::BytesMut::from(buffer)
    }
}

#[cfg(feature = "bytes")]
impl IoBufMut for bytes::BytesMut {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address and the bytes after a way through a buffer.
    fn there_and_back<B: IoBuf + AsRef<[u8]>>(value: B) -> (bool, Vec<u8>) {
        let before = value.as_ref().as_ptr();
        let (buffer, rest) = value.into_buffer();
        let value = B::from_buffer(buffer, rest);
        (value.as_ref().as_ptr() == before, value.as_ref().to_vec())
    }

    #[test]
    fn values_come_back_as_they_were() {
        let whole = (true, b"bytes".to_vec());
        assert_eq!(there_and_back(b"bytes".to_vec()), whole);
        assert_eq!(there_and_back(b"bytes".to_vec().into_boxed_slice()), whole);
        assert_eq!(there_and_back(Buffer::from(*b"bytes")), whole);
        assert_eq!(there_and_back(&b"bytes"[..]), whole);
        assert_eq!(there_and_back("bytes"), whole);
        assert_eq!(there_and_back(Vec::new()).1, b"");
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn shared_bytes_come_back_as_themselves() {
        use bytes::{Bytes, BytesMut};
        let shared = Bytes::from(b"bytes".to_vec());
        let other = shared.clone();
        assert_eq!(there_and_back(shared), (true, b"bytes".to_vec()));
        assert_eq!(there_and_back(other).1, b"bytes");
        let own = BytesMut::from(&b"bytes"[..]);
        assert_eq!(there_and_back(own), (true, b"bytes".to_vec()));
    }
}
