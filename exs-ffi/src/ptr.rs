//! Pointers of C callers.
//!
//! # The argument
//! An [`In`] or [`Out`] is made by the C caller alone: it is an argument of an exported
//! function, which is `unsafe`, and whose caller promises what `<sys/exs.h>` asks for: a
//! pointer is NULL, or points to an object of its type (or as many as are said) that is
//! valid during the call, or for as long as the header says that it is kept. NULL is
//! checked here. Objects are copied, at any alignment, never referred to.

use std::ffi::c_int;

use libc::c_void;

use crate::error::{Fail, Result};

/// Where the caller keeps one or more objects that are read.
#[derive(Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

/// Where the caller wants results, or keeps what is read and changed.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// Memory of the caller's for an operation.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Bytes(*mut c_void);

const NULL: Fail = Fail::fixed(libc::EFAULT, "a pointer is NULL that must not be");

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn raw(self) -> *const T {
        self.0
    }

    /// The same place, seen as another type: for values whose type a number says.
    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// As a name of the place, to be found again when an event comes.
    pub(crate) fn name(self) -> u64 {
        self.0 as u64
    }

    /// The place that was given such a name; the caller keeps it until the event.
    pub(crate) fn named(name: u64) -> Out<T> {
        Out(name as *mut T)
    }

    pub(crate) fn raw(self) -> *mut T {
        self.0
    }

    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    /// The object, copied.
    pub(crate) fn read(self) -> Result<T> {
        self.at(0)
    }

    fn at(self, i: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(NULL);
        }
        let place = self.0.wrapping_add(i);
        // SAFETY: one of the objects that the caller promises (module essay).
        Ok(unsafe { place.read_unaligned() })
    }

    /// `count` objects, copied one by one; none if it is negative or above `max`.
    pub(crate) fn list(self, count: c_int, max: c_int) -> Result<impl Iterator<Item = T>> {
        if count < 0 || count > max {
            return Err(Fail::fixed(libc::EINVAL, "a list of fewer than 0 or too many elements"));
        }
        if self.0.is_null() && count > 0 {
            return Err(NULL);
        }
        Ok((0..usize::try_from(count).unwrap_or(0)).map_while(move |i| self.at(i).ok()))
    }

    /// The same place, seen as bytes.
    pub(crate) fn bytes(self, len: usize) -> Result<Vec<u8>> {
        let first = In(self.0.cast::<u8>());
        (0..len).map(|i| first.at(i)).collect()
    }
}

impl<T: Copy> Out<T> {
    /// An error if it is NULL.
    pub(crate) fn check(self) -> Result<()> {
        if self.0.is_null() { Err(NULL) } else { Ok(()) }
    }

    pub(crate) fn read(self) -> Result<T> {
        In(self.0.cast_const()).read()
    }

    /// Stores a value.
    pub(crate) fn write(self, value: T) -> Result<()> {
        self.write_at(0, value)
    }

    /// Stores the `i`-th value of those that the caller has room for.
    pub(crate) fn write_at(self, i: usize, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(NULL);
        }
        let place = self.0.wrapping_add(i);
        // SAFETY: room for this object is what the caller promises (module essay).
        unsafe { place.write_unaligned(value) };
        Ok(())
    }
}

impl<T> From<Out<T>> for In<T> {
    fn from(place: Out<T>) -> In<T> {
        In(place.0.cast_const())
    }
}

impl Out<Msg> {
    /// Where a message says where it goes, or whence it came.
    pub(crate) fn name_of(message: &Msg) -> Out<c_void> {
        Out(message.exs_msg_name)
    }

    /// The pieces of a message.
    pub(crate) fn pieces(message: &Msg) -> In<crate::abi::Iovec> {
        In(message.exs_msg_iov.cast_const())
    }
}

type Msg = crate::abi::Msghdr;

impl Bytes {
    /// The memory that an element of a list names.
    pub(crate) fn of(piece: &crate::abi::Iovec) -> Bytes {
        Bytes(piece.exs_iov_base)
    }

    pub(crate) fn raw(self) -> *mut c_void {
        self.0
    }

    pub(crate) fn name(self) -> u64 {
        self.0 as u64
    }
}
