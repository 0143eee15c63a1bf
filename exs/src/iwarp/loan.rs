//! The framing of a connection at rest, lent to threads that send and receive small messages.
//!
//! A SEND of one FPDU changes no more than a sequence number, in either direction. So while nothing
//! else is under way, the numbers can be lent: the engine stands still meanwhile, and takes them back
//! as if it had sent and received the messages itself.

use super::IwarpEngine;
use super::eager::{MAX_EAGER, find_plain_send};
use super::tx::{max_payload, untagged};
use crate::rnic::HEAD;
use crate::sys::IoVec;
use crate::wire::ddp;
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, QN_SEND};

/// What an engine lends ([`IwarpEngine::lend`]).
#[derive(Clone, Debug)]
pub struct FramingLoan {
    /// The sequence number of the next SEND in each direction.
    send_msn: u32,
    recv_msn: u32,
    crc: bool,
    /// The most payload bytes of an FPDU.
    most: usize,
}

impl FramingLoan {
    /// Puts a SEND into `frame`, whose payload is `head` and then `data`. False: it does not fit one
    /// FPDU, or is no small message.
    #[inline]
    pub fn frame(&self, head: &[u8], data: &IoVec<'_>, frame: &mut Vec<u8>) -> bool {
        let len = head.len() + data.len();
        let ulpdu = ddp::UNTAGGED_LEN + len;
        let (true, Ok(length)) = (len <= self.most, u16::try_from(ulpdu)) else { return false };
        let mut header = [0; ddp::UNTAGGED_LEN];
        untagged(Opcode::Send, QN_SEND, self.send_msn).emit(&mut header);
        frame.clear();
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&header);
        frame.extend_from_slice(head);
        data.append_to(frame);
        let trailer = mpa::trailer_len(ulpdu);
        frame.resize(frame.len() + trailer, 0);
        if self.crc {
            let end = frame.len() - mpa::CRC_LEN;
            let crc = crc32c::crc32c(&frame[..end]);
            frame[end..].copy_from_slice(&mpa::emit_crc(crc));
        }
        true
    }

    /// Notes that the last frame leaves.
    #[inline]
    pub fn note_sent(&mut self) {
        self.send_msn = self.send_msn.wrapping_add(1);
    }

    /// The message that `bytes` are, if they are the next SEND, plain and whole, and nothing else.
    #[inline]
    pub fn message<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let found = find_plain_send(bytes, self.recv_msn, self.crc)?;
        (found.used == bytes.len()).then_some(found.payload)
    }

    /// Notes that the message has been taken.
    #[inline]
    pub fn note_received(&mut self) {
        self.recv_msn = self.recv_msn.wrapping_add(1);
    }
}

impl IwarpEngine {
    /// Lends the framing. None: something is under way, or each FPDU must be a TCP segment of its own.
    pub fn lend(&self) -> Option<FramingLoan> {
        let alone = self.settled.crc && !self.settled.large;
        let rests = self.can_send_eager() && self.can_recv_eager() && self.tx.batch.is_none();
        let most =
            max_payload(&self.settled, self.cfg.mss, ddp::UNTAGGED_LEN).min(MAX_EAGER - HEAD);
        (rests && !alone).then_some(FramingLoan {
            send_msn: self.tx.send_msn,
            recv_msn: self.rx.send_msn,
            crc: self.settled.crc,
            most,
        })
    }

    /// Takes the framing back. Threads have sent this number of messages, in `sent_bytes` of FPDUs, and
    /// received this number.
    pub fn end_loan(&mut self, sent: u32, sent_bytes: u64, received: u32) {
        self.tx.send_msn = self.tx.send_msn.wrapping_add(sent);
        self.tx.built += sent_bytes;
        self.tx.sent += sent_bytes;
        self.rx.send_msn = self.rx.send_msn.wrapping_add(received);
    }
}
