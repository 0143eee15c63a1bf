//! Control messages of two programs, beside the connection that is measured.
//!
//! Each frame is a length (4 bytes, big-endian) and that many bytes of JSON.

use std::io::{ErrorKind, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fail::{During, Failure};

/// Longest frame, in bytes. These programs send none that is longer.
const MAX_FRAME: usize = 16 << 10;

/// Writes one frame.
///
/// # Errors
/// Those of the connection; a frame that is too long.
pub fn send(to: &mut impl Write, frame: &impl Serialize) -> Result<(), Failure> {
    let body = serde_json::to_vec(frame).during("control message")?;
    let len = u32::try_from(body.len()).during("control message")?;
    if body.len() > MAX_FRAME {
        return Err(Failure(format!(
            "a control message of {len} bytes, {MAX_FRAME} are the limit"
        )));
    }
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend(body);
    to.write_all(&bytes).during("control connection")
}

/// The next frame; None at the end. `program` is what the other side should be.
///
/// # Errors
/// Those of the connection; bytes that are no frame.
pub fn recv<T: DeserializeOwned>(
    from: &mut impl Read,
    program: &str,
) -> Result<Option<T>, Failure> {
    let stranger = || Failure(format!("the other side does not speak {program}"));
    let mut head = [0; 4];
    let first = loop {
        match from.read(&mut head) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => break other.during("control connection")?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[first..]).during("control connection")?;
    let len = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if len > MAX_FRAME {
        return Err(stranger());
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body).during("control connection")?;
    serde_json::from_slice(&body)
        .map(Some)
        .map_err(|e| Failure(format!("{}, or another version of it: {e}", stranger())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_nonsense_does_not() {
        let mut wire = Vec::new();
        send(&mut wire, &(7, "seven")).unwrap();
        send(&mut wire, &(8, "eight")).unwrap();
        let mut from = wire.as_slice();
        assert_eq!(recv(&mut from, "us").unwrap(), Some((7, "seven".to_owned())));
        assert_eq!(recv(&mut from, "us").unwrap(), Some((8, "eight".to_owned())));
        assert_eq!(recv::<(u8, String)>(&mut from, "us").unwrap(), None);

        let said = |bytes: &[u8]| recv::<u8>(&mut &*bytes, "us").unwrap_err().to_string();
        assert!(said(b"SSH-2.0-OpenSSH").contains("does not speak us"));
        assert!(said(b"\0\0\0\x03abc").contains("another version"));
        assert!(said(b"\0\0\0\x09abc").contains("control connection"), "cut off");
        assert!(said(b"\0\0").contains("control connection"), "cut off");
        assert!(send(&mut Vec::new(), &"x".repeat(MAX_FRAME)).is_err());
    }
}
