//! Words that the peers of several connections change by atomic operations.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::raw::WordRegion;
use super::{Export, RemoteBuffer, Socket};
use crate::mem::{AtomicOp, Atomics, Segment, WORD};
use crate::progress::Error;
use crate::session::OpError;

/// Words of 8 bytes that the peers of several connections reach at the same time, by atomic
/// operations only: a counter or a lock for many. An [`Export`] belongs to one connection.
///
/// All operations on a word are atomic among each other, by whichever connections, shards and
/// transports they come, and those of this program with them. An RDMA device whose operations are
/// atomic among its own only ([`Atomics::Device`]) gets the words for itself: while they are
/// exported over it, they cannot be exported over another device, and [`AtomicWords::fetch_add`] and
/// [`AtomicWords::compare_swap`] fail with EOPNOTSUPP.
///
/// EXS extension. Cloning gives another handle to the same words.
///
/// ```
/// # use exs::Socket;
/// # let listener = Socket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(2)?;
/// # let mut servers = Vec::new();
/// # let mut clients = Vec::new();
/// # for _ in 0..2 {
/// #     let client = Socket::stream()?;
/// #     client.blocking().connect(listener.local_addr()?)?;
/// #     clients.push(client);
/// #     servers.push(listener.blocking().accept()?.0);
/// # }
/// // `servers` are two connections of this program; `clients` are their other ends.
/// let words = exs::AtomicWords::new(1)?;
/// let exports: Vec<_> =
///     servers.iter().map(|s| words.export(s, None)).collect::<Result<_, exs::Error>>()?;
/// // The descriptors go to the peers by messages of the program's own. Then the peers count.
/// for (client, export) in clients.iter().zip(&exports) {
///     client.blocking().fetch_add(&export.descriptor(), 0, 10)?;
/// }
/// assert_eq!(words.load(0)?, 20);
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AtomicWords {
    inner: Arc<WordMemory>,
}

#[derive(Debug)]
struct WordMemory {
    memory: WordRegion,
    all: Segment,
    /// Operations of this program hold it for reading, so that none meets one of a device that
    /// executes its operations apart.
    executor: RwLock<Executor>,
}

/// The device that executes the peers' operations apart from the processor, and the exports over it.
/// None: the processor executes all operations, over `exports` connections.
#[derive(Debug, Default, PartialEq, Eq)]
struct Executor {
    device: Option<String>,
    exports: usize,
}

impl Executor {
    /// Adds an export over a device.
    fn join(&mut self, device: Option<String>) -> Result<(), Error> {
        if self.exports > 0 && self.device != device {
            return Err(apart());
        }
        self.device = device;
        self.exports += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.exports -= 1;
        if self.exports == 0 {
            self.device = None;
        }
    }
}

#[cold]
fn apart() -> Error {
    Error::Op(OpError::Unsupported(
        "atomic operations by two devices, or by a device and the processor, on the same words \
         (they are not atomic with each other: end the exports over the other one first)",
    ))
}

impl AtomicWords {
    /// Allocates `count` words, which are 0.
    ///
    /// # Errors
    /// `count` is 0, or the kernel has no memory.
    pub fn new(count: usize) -> Result<AtomicWords, Error> {
        let bytes = count.checked_mul(WORD).ok_or_else(|| Error::invalid("too many words"))?;
        let memory = WordRegion::new(bytes)?;
        let all = memory.segment();
        let executor = RwLock::default();
        Ok(AtomicWords { inner: Arc::new(WordMemory { memory, all, executor }) })
    }

    /// The number of words.
    pub fn len(&self) -> usize {
        self.inner.memory.len() / WORD
    }

    /// Always false: there is at least one word.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens the words to the peer of a connection, for atomic operations, until the export is
    /// dropped, its lifetime is over, or the connection ends. Word `i` is at the offset 8 * `i`.
    ///
    /// # Errors
    /// As [`Socket::export`]; or a device whose operations are not atomic with those of the exports
    /// that there are (EOPNOTSUPP).
    pub fn export(
        &self,
        socket: &Socket,
        lifetime: Option<Duration>,
    ) -> Result<WordsExport, Error> {
        let by_itself = socket.atomics() == Atomics::Device;
        let device = socket.transport().map(|route| route.device).filter(|_| by_itself);
        self.executor_mut(|e| e.join(device))?;
        match self.inner.memory.export(socket, lifetime) {
            Ok(export) => Ok(WordsExport { export: Some(export), words: self.clone() }),
            Err(e) => {
                self.executor_mut(Executor::leave);
                Err(e)
            }
        }
    }

    fn executor_mut<T>(&self, change: impl FnOnce(&mut Executor) -> T) -> T {
        let lock = &self.inner.executor;
        change(&mut lock.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The value of a word. It works whichever device executes the peers' operations.
    ///
    /// # Errors
    /// There is no such word (EINVAL).
    pub fn load(&self, index: usize) -> Result<u64, Error> {
        let offset = self.offset(index)?;
        Ok(self.inner.all.load_word(offset))
    }

    /// Adds to a word, and returns what was there before. The sum wraps.
    ///
    /// # Errors
    /// There is no such word (EINVAL), or a device executes the peers' operations apart from the
    /// processor (EOPNOTSUPP).
    pub fn fetch_add(&self, index: usize, add: u64) -> Result<u64, Error> {
        self.atomic(index, AtomicOp::FetchAdd(add))
    }

    /// Stores `new` in a word if it is `expected`. Returns what was there before.
    ///
    /// # Errors
    /// As [`AtomicWords::fetch_add`].
    pub fn compare_swap(&self, index: usize, expected: u64, new: u64) -> Result<u64, Error> {
        self.atomic(index, AtomicOp::CompareSwap { expected, new })
    }

    fn atomic(&self, index: usize, op: AtomicOp) -> Result<u64, Error> {
        let offset = self.offset(index)?;
        let executor = self.inner.executor.read().unwrap_or_else(PoisonError::into_inner);
        if executor.device.is_some() {
            return Err(apart());
        }
        Ok(self.inner.all.atomic(offset, op))
    }

    fn offset(&self, index: usize) -> Result<usize, Error> {
        if index >= self.len() {
            let count = self.len();
            return Err(Error::invalid(format!("word {index} of {count}")));
        }
        Ok(index * WORD)
    }
}

/// [`AtomicWords`] that are open to the peer of one connection. Dropping it shuts that peer out. It
/// counts as a handle of its socket: while it lives, the socket is not closed.
#[derive(Debug)]
pub struct WordsExport {
    /// None: it is being dropped.
    export: Option<Export>,
    words: AtomicWords,
}

impl WordsExport {
    /// The descriptor that the program hands to the peer.
    pub fn descriptor(&self) -> RemoteBuffer {
        self.export.as_ref().expect("it is not being dropped").descriptor()
    }

    /// The words.
    pub fn words(&self) -> &AtomicWords {
        &self.words
    }
}

impl Drop for WordsExport {
    fn drop(&mut self) {
        // First the peer is shut out. Then the words may go to another device.
        drop(self.export.take());
        self.words.executor_mut(Executor::leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_executes_apart_has_the_words_alone() {
        let (rxe, other) = (Some("rxe0".to_owned()), Some("rxe1".to_owned()));
        let mut e = Executor::default();
        e.join(rxe.clone()).unwrap();
        e.join(rxe.clone()).unwrap();
        assert!(e.join(other.clone()).is_err() && e.join(None).is_err());
        e.leave();
        assert!(e.join(None).is_err(), "one export is left");
        e.leave();
        e.join(None).unwrap();
        assert!(e.join(rxe).is_err());
        e.leave();
        e.join(other).unwrap();
        assert_eq!(e.exports, 1);
    }

    #[test]
    fn a_device_shuts_the_processor_out() {
        let words = AtomicWords::new(2).unwrap();
        assert_eq!((words.fetch_add(1, 3).unwrap(), words.len()), (0, 2));
        assert!(words.load(2).is_err() && words.fetch_add(2, 1).is_err());
        words.executor_mut(|e| e.join(Some("rxe0".to_owned()))).unwrap();
        assert_eq!(words.fetch_add(1, 1).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(words.load(1).unwrap(), 3);
        words.executor_mut(Executor::leave);
        assert_eq!(words.compare_swap(1, 3, 9).unwrap(), 3);
        assert_eq!(words.load(1).unwrap(), 9);
    }
}
