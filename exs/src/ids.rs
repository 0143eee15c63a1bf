//! Names for things that cross floors.

/// An operation that a program posted; unique for the life of a context. The
/// upper floors map it to the program's token, queue and buffer.
pub type OpId = u64;

/// How an operation of a protocol machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done (for a receive of 0 bytes: the end of the stream).
    Ok,
    /// Cancelled; the bytes reported were moved all the same.
    Cancelled,
}
