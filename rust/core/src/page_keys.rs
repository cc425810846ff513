//! Page keys: the identity of a full page outside the device. Owns the one definition; never decides what a
//! key is used for.
//!
//! `key(page) = BLAKE3(key(page before) ‖ frames)`, with a frame for each run of one namespace in the page:
//! the namespace's length and bytes, the number of tokens, the tokens; all numbers u32, little-endian. Before
//! the first page stands `BLAKE3("appliance page key 1" ‖ page_size)`. Adjacent runs of one namespace are one.
//! So two keys are equal only for equal tokens under equal namespaces from position 0 on.

use thiserror::Error;

/// BLAKE3 of a page and all pages before it.
pub type PageKey = [u8; 32];

const DOMAIN: &[u8] = b"appliance page key 1";

/// What the message of a page of 16 tokens takes with an ordinary namespace.
const MESSAGE_BYTES: usize = 256;

/// What is wrong with a path.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PageKeysError {
    #[error("page_size must be from 1 to 2^32 - 1")]
    PageSize,
    #[error("the stretches do not cover the {tokens} tokens exactly")]
    Stretches { tokens: usize },
    #[error("a namespace is longer than 2^32 - 1 bytes")]
    Namespace,
}

/// What stands before the first page.
pub fn root_key(page_size: u32) -> PageKey {
    *blake3::hash(&[DOMAIN, &page_size.to_le_bytes()].concat()).as_bytes()
}

/// The key of the page that follows `above`; `runs` are its tokens by namespace, neighbours different.
///
/// # Panics
/// For a namespace or a run of 2^32 bytes or tokens.
pub fn next_key<'a>(
    above: &PageKey,
    runs: impl IntoIterator<Item = (&'a [u8], &'a [u32])>,
) -> PageKey {
    // Hashed in one go: to feed the hasher number by number takes longer than to hash them.
    let mut message = Vec::with_capacity(MESSAGE_BYTES);
    message.extend_from_slice(above);
    for (namespace, tokens) in runs {
        // Checked where a namespace or a page comes in.
        let frame_len = |len: usize| u32::try_from(len).expect("a length of u32").to_le_bytes();
        message.extend_from_slice(&frame_len(namespace.len()));
        message.extend_from_slice(namespace);
        message.extend_from_slice(&frame_len(tokens.len()));
        let at = message.len();
        message.resize(at + 4 * tokens.len(), 0);
        for (bytes, token) in message[at..].chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
    }
    *blake3::hash(&message).as_bytes()
}

/// The keys of the full pages of a path; `stretches` are (namespace, tokens) in path order.
pub fn page_keys(
    token_ids: &[u32],
    stretches: &[(&[u8], usize)],
    page_size: usize,
) -> Result<Vec<PageKey>, PageKeysError> {
    let size = u32::try_from(page_size).map_err(|_| PageKeysError::PageSize)?;
    if size == 0 {
        return Err(PageKeysError::PageSize);
    }
    let tokens = token_ids.len();
    let mut counts = stretches.iter().map(|&(_, count)| count);
    if counts.try_fold(0, usize::checked_add) != Some(tokens) {
        return Err(PageKeysError::Stretches { tokens });
    }
    if stretches
        .iter()
        .any(|(namespace, _)| u32::try_from(namespace.len()).is_err())
    {
        return Err(PageKeysError::Namespace);
    }
    let borders = merged(stretches);
    let mut key = root_key(size);
    let mut keys = Vec::with_capacity(tokens / page_size);
    for start in (0..tokens / page_size).map(|page| page * page_size) {
        let end = start + page_size;
        let first = borders.partition_point(|&(_, border)| border <= start);
        let mut from = start;
        let runs = borders[first..].iter().map_while(|&(namespace, border)| {
            let run = (from < end).then(|| (namespace, &token_ids[from..border.min(end)]));
            from = border.min(end);
            run
        });
        key = next_key(&key, runs);
        keys.push(key);
    }
    Ok(keys)
}

/// (namespace, end) of each run, empty ones left out and equal neighbours made one.
fn merged<'a>(stretches: &[(&'a [u8], usize)]) -> Vec<(&'a [u8], usize)> {
    let mut borders: Vec<(&[u8], usize)> = Vec::with_capacity(stretches.len());
    let mut end = 0;
    for &(namespace, count) in stretches.iter().filter(|&&(_, count)| count > 0) {
        end += count;
        match borders.last_mut() {
            Some((last, border)) if *last == namespace => *border = end,
            _ => borders.push((namespace, end)),
        }
    }
    borders
}
