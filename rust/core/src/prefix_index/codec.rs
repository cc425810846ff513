//! Numbers and byte strings of a dump, between its magic and its checksum. Owns lengths and limits; knows
//! nothing of what they mean.

use super::load_error::{LoadError, contradiction};

/// Of BLAKE3, over all before it.
const CHECKSUM_BYTES: usize = 32;

pub(super) struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// Of a dump that begins with `magic` and `version`.
    pub(super) fn new(magic: &[u8], version: u32) -> Self {
        let mut out = Self {
            out: magic.to_vec(),
        };
        out.u32(version);
        out
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// A count, as u32.
    pub(super) fn len(&mut self, count: usize) {
        // Nodes, pages, rows and stretches are all fewer than the slots of a device.
        self.u32(u32::try_from(count).expect("a count of u32"));
    }

    pub(super) fn framed(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.bytes(bytes);
    }

    pub(super) fn words(&mut self, words: &[u32]) {
        self.len(words.len());
        for word in words {
            self.u32(*word);
        }
    }

    /// The dump, with its checksum.
    pub(super) fn seal(mut self) -> Vec<u8> {
        let checksum = blake3::hash(&self.out);
        self.bytes(checksum.as_bytes());
        self.out
    }
}

/// Reads no more than there is, and takes no more memory than a few times that.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// What stands in a dump between version and checksum.
    pub(super) fn open(bytes: &'a [u8], magic: &[u8], version: u32) -> Result<Self, LoadError> {
        let Some((body, checksum)) = bytes
            .len()
            .checked_sub(CHECKSUM_BYTES)
            .map(|end| bytes.split_at(end))
            .filter(|(body, _)| body.starts_with(magic))
        else {
            return Err(LoadError::NotADump);
        };
        let mut input = Self {
            rest: &body[magic.len()..],
        };
        let found = input.u32()?;
        if found != version {
            return Err(LoadError::Version {
                found,
                expected: version,
            });
        }
        if blake3::hash(body).as_bytes() != checksum {
            return Err(LoadError::Checksum);
        }
        Ok(input)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], LoadError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(contradiction("it ends too early"));
        };
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn len(&mut self) -> Result<usize, LoadError> {
        Ok(self.u32()? as usize)
    }

    pub(super) fn framed(&mut self) -> Result<&'a [u8], LoadError> {
        let count = self.len()?;
        self.take(count)
    }

    pub(super) fn words(&mut self) -> Result<Vec<u32>, LoadError> {
        let count = self.len()?;
        let (words, _) = self.take(count.saturating_mul(4))?.as_chunks();
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), LoadError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(contradiction("it goes on after its end"))
    }
}
