//! Pointers of C callers.
//!
//! # The argument
//! Only the C caller makes an [`In`] or [`Out`]: it is an argument of an exported function, which
//! is `unsafe`. Its caller promises what `<sys/exs.h>` demands: a pointer is NULL, or points to
//! an object of its type (or to as many as the header says) that is valid during the call, or for
//! as long as the header says that it is kept. This module checks NULL. It copies objects, at any
//! alignment, and never makes references to them.

use std::ffi::c_int;

use libc::c_void;

use crate::error::{Fail, Result};

/// A place of the caller with one or more objects to read.
#[derive(Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

/// A place of the caller for results, or for objects that are read and changed.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// Memory of the caller for an operation.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Bytes(*mut c_void);

const NULL: Fail = Fail::fixed(libc::EFAULT, "a pointer that must not be NULL is NULL");

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

    /// Returns the same place as another type, for values whose type a number tells.
    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns a number for the place, by which the event finds it again.
    pub(crate) fn name(self) -> u64 {
        self.0 as u64
    }

    /// Returns the place with this number. The caller keeps the place until the event.
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
    /// Copies the object.
    pub(crate) fn read(self) -> Result<T> {
        self.read_at(0)
    }

    /// Copies the `i`-th object. The caller has put it there, or has said that it is there.
    pub(crate) fn read_at(self, i: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(NULL);
        }
        let place = self.0.wrapping_add(i);
        // SAFETY: one of the objects that the caller promises (see the module's head).
        Ok(unsafe { place.read_unaligned() })
    }

    /// Copies a string, without its NUL. Fails with ENAMETOOLONG if there is none in the first `most`
    /// bytes.
    pub(crate) fn text(self, most: usize) -> Result<Vec<u8>> {
        let bytes = self.cast::<u8>();
        let mut text = Vec::new();
        for i in 0..most {
            match bytes.read_at(i)? {
                0 => return Ok(text),
                byte => text.push(byte),
            }
        }
        Err(Fail::fixed(libc::ENAMETOOLONG, "a text is longer than any that has a meaning there"))
    }

    /// Copies `count` objects, one by one. Fails if `count` is negative or above `max`.
    pub(crate) fn list(self, count: c_int, max: c_int) -> Result<impl Iterator<Item = T>> {
        if count < 0 || count > max {
            return Err(Fail::fixed(libc::EINVAL, "a list of fewer than 0 or too many elements"));
        }
        if self.0.is_null() && count > 0 {
            return Err(NULL);
        }
        Ok((0..usize::try_from(count).unwrap_or(0)).map_while(move |i| self.read_at(i).ok()))
    }

    /// Copies `len` bytes from the place.
    pub(crate) fn bytes(self, len: usize) -> Result<Vec<u8>> {
        let first = In(self.0.cast::<u8>());
        (0..len).map(|i| first.read_at(i)).collect()
    }
}

impl<T: Copy> Out<T> {
    /// Fails if it is NULL.
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

    /// Stores the `i`-th value. The caller has room for it.
    pub(crate) fn write_at(self, i: usize, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(NULL);
        }
        let place = self.0.wrapping_add(i);
        // SAFETY: the caller promises room for this object (see the module's head).
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
    /// Returns the place of a message's address.
    pub(crate) fn name_of(message: &Msg) -> Out<c_void> {
        Out(message.exs_msg_name)
    }

    /// Returns the pieces of a message.
    pub(crate) fn pieces(message: &Msg) -> In<crate::abi::Iovec> {
        In(message.exs_msg_iov.cast_const())
    }
}

type Msg = crate::abi::Msghdr;

impl Bytes {
    /// Returns the memory that an element of a list names.
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
