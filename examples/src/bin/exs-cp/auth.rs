//! Both sides prove that they know the secret; neither sends it.
//!
//! Each side draws a 32-byte nonce and sends it in its hello. The key is
//! derived from the token with BLAKE3's key derivation. The proof is keyed
//! BLAKE3 over a fixed domain string, the prover's role and both nonces:
//! - both nonces: an old proof is worth nothing;
//! - the role: a proof cannot be reflected to the side that made it;
//! - the client proves first, so a server that knows nothing learns nothing
//!   it could use, and a client sends no file before the server has proved.
//!
//! A proof lets an eavesdropper guess tokens off-line: use a long random
//! token, not a word. Nothing here encrypts the data.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use subtle::ConstantTimeEq;

use crate::error::CpError;

pub(crate) const NONCE: usize = 32;
pub(crate) type Nonce = [u8; NONCE];
pub(crate) type Proof = [u8; 32];

const KEY_CONTEXT: &str = "exs-cp 2026 token file to authentication key v1";
const PROOF_DOMAIN: &[u8] = b"exs-cp mutual challenge-response v1\0";
/// A token with fewer bytes is no secret.
const MIN_TOKEN: usize = 16;
const MAX_TOKEN: u64 = 64 << 10;

/// The side that makes a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// The key behind a token file. Deliberately without `Debug`.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn new(token: &[u8]) -> Secret {
        Secret(blake3::derive_key(KEY_CONTEXT, token))
    }

    /// Reads a token file; white space around the token does not count, so
    /// that an editor's last newline does no harm.
    pub(crate) fn from_file(path: &Path) -> Result<Secret, CpError> {
        let bytes = read_token(path).map_err(|e| CpError::local("read the token file", path, e))?;
        let token = bytes.trim_ascii();
        if token.len() < MIN_TOKEN {
            return Err(CpError::Usage(format!(
                "the token file `{}` must hold {MIN_TOKEN} bytes to 64 KiB; make one with: \
                 head -c 32 /dev/urandom | base64 > {0}",
                path.display()
            )));
        }
        Ok(Secret::new(token))
    }

    pub(crate) fn prove(&self, role: Role, client: &Nonce, server: &Nonce) -> Proof {
        let mut h = blake3::Hasher::new_keyed(&self.0);
        h.update(PROOF_DOMAIN);
        h.update(match role {
            Role::Client => b"client\0",
            Role::Server => b"server\0",
        });
        h.update(client).update(server);
        *h.finalize().as_bytes()
    }

    /// Takes the same time wherever the first wrong byte is.
    pub(crate) fn check(&self, role: Role, client: &Nonce, server: &Nonce, proof: &Proof) -> bool {
        self.prove(role, client, server).ct_eq(proof).into()
    }
}

/// A token file's bytes, `-` being standard input; none if there are too many.
fn read_token(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = |from: &mut dyn Read, bytes| from.take(MAX_TOKEN + 1).read_to_end(bytes);
    if path == Path::new("-") {
        read(&mut io::stdin().lock(), &mut bytes)?;
    } else {
        read(&mut File::open(path)?, &mut bytes)?;
    }
    if bytes.len() as u64 > MAX_TOKEN {
        bytes.clear();
    }
    Ok(bytes)
}

/// Fresh randomness from the kernel.
pub(crate) fn nonce() -> Result<Nonce, CpError> {
    let mut n = [0; NONCE];
    getrandom::fill(&mut n).map_err(|e| CpError::Auth(format!("no random numbers: {e}")))?;
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Nonce = [1; 32];
    const S: Nonce = [2; 32];

    #[test]
    fn the_right_token_is_known_and_no_other() {
        let a = Secret::new(b"correct horse battery staple");
        let b = Secret::new(b"correct horse battery stapel");
        let proof = a.prove(Role::Client, &C, &S);
        assert!(a.check(Role::Client, &C, &S, &proof));
        assert!(!b.check(Role::Client, &C, &S, &proof));
    }

    #[test]
    fn a_proof_is_good_for_one_role_and_one_pair_of_nonces() {
        let a = Secret::new(b"correct horse battery staple");
        let proof = a.prove(Role::Client, &C, &S);
        assert!(!a.check(Role::Server, &C, &S, &proof), "reflected");
        assert!(!a.check(Role::Client, &C, &[3; 32], &proof), "replayed");
        assert!(!a.check(Role::Client, &S, &C, &proof), "swapped");
        let mut bent = proof;
        bent[31] ^= 1;
        assert!(!a.check(Role::Client, &C, &S, &bent));
    }

    /// Keeps two versions of the program able to talk to each other.
    #[test]
    fn the_proof_is_this_one() {
        let mut h = blake3::Hasher::new_keyed(&blake3::derive_key(
            "exs-cp 2026 token file to authentication key v1",
            b"0123456789abcdef",
        ));
        h.update(b"exs-cp mutual challenge-response v1\0server\0");
        h.update(&C).update(&S);
        let want = h.finalize();
        let got = Secret::new(b"0123456789abcdef").prove(Role::Server, &C, &S);
        assert_eq!(&got, want.as_bytes());
    }
}
