//! Prompt assembly for Python: parallel lists in, one packed buffer out, the GIL released for long texts.

use std::sync::Arc;

use appliance_core::prompt::assemble::{self, Asked, AssembleError, End, Kept, Message};
use appliance_core::prompt::cut::Window;
use appliance_core::prompt::parts::Part;
use appliance_core::prompt::pieces::{self, Placement, Role, Slot};
use appliance_core::tokenizer;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyTuple};

use crate::packed::{Count, pack, unpack};
use crate::tokenizer::Tokenizer;

/// Texts to encode of so many bytes in all are encoded with the GIL released. Below, another thread
/// could keep it for longer than the work takes.
const RELEASE_BYTES_MIN: usize = 16 << 10;

create_exception!(
    appliance._core,
    ContentRefused,
    PyValueError,
    "A content cannot be encoded. args: the index of its message, and why."
);
create_exception!(
    appliance._core,
    PromptTooLong,
    PyValueError,
    "What every prompt holds and the newest message are more than the room."
);

fn to_python(error: AssembleError) -> PyErr {
    match error {
        AssembleError::Content { index, error } => {
            ContentRefused::new_err((index, error.to_string()))
        }
        AssembleError::TooLong(sentence) => PromptTooLong::new_err(sentence),
    }
}

fn role(name: &str) -> PyResult<Role> {
    match name {
        "system" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        _ => Err(PyValueError::new_err(format!("no role is called {name:?}"))),
    }
}

/// (ids in front of a content, trims its start, trims its end).
type PySlot = (PyBackedBytes, bool, bool);

fn slot((before, trim_left, trim_right): &PySlot) -> PyResult<Slot> {
    Ok(Slot {
        before: unpack("before", before)?.into_owned(),
        trim_left: *trim_left,
        trim_right: *trim_right,
    })
}

/// (limit, reserve, step, draft). Sizes cross as u32, so that no sum of them overflows.
type PyWindow = (Count<u32>, Count<u32>, Count<u32>, Count<u32>);

fn window((limit, reserve, step, draft): &PyWindow) -> Window {
    Window {
        limit: i64::from(limit.0),
        reserve: i64::from(reserve.0),
        step: i64::from(step.0),
        draft: i64::from(draft.0),
    }
}

/// (name, truncation priority, block).
type PyPart = (PyBackedStr, Count<u32>, Option<PyBackedStr>);

fn parts<'a>(front: &'a [PyPart], after: &'a [PyPart]) -> Vec<Part<'a>> {
    let part = |(name, priority, block): &'a PyPart| Part {
        name,
        priority: priority.0,
        block: block.as_deref(),
    };
    front.iter().chain(after).map(part).collect()
}

/// (dropped, left out, window_tokens).
type PyKept = (usize, Vec<usize>, i64);

fn kept(kept: Kept) -> PyKept {
    (kept.cut.dropped, kept.left_out, kept.cut.window_tokens)
}

/// The messages of one call, as parallel lists. Their texts and ids stay in Python's memory.
type Columns = (
    Vec<PyBackedStr>,
    Vec<PyBackedStr>,
    Vec<Option<PyBackedBytes>>,
    Vec<PyBackedBytes>,
);

fn read<'a>(columns: &'a Columns, public: &[u8]) -> PyResult<Vec<Message<'a>>> {
    let (roles, texts, token_ids, namespaces) = columns;
    let count = roles.len();
    if [texts.len(), token_ids.len(), namespaces.len()] != [count; 3] {
        return Err(PyValueError::new_err(
            "the lists of messages differ in length",
        ));
    }
    let mut messages = Vec::with_capacity(count);
    for (index, name) in roles.iter().enumerate() {
        let token_ids = match &token_ids[index] {
            None => None,
            Some(bytes) => Some(unpack("token_ids", bytes)?),
        };
        messages.push(Message {
            role: role(name)?,
            text: &texts[index],
            token_ids,
            namespace: &namespaces[index],
            is_public: *namespaces[index] == *public,
        });
    }
    Ok(messages)
}

/// Run `work`, with the GIL released when the texts to encode are long.
fn run<T: Send>(py: Python<'_>, messages: &[Message<'_>], work: impl FnOnce() -> T + Send) -> T {
    let bytes: usize = messages
        .iter()
        .filter(|message| message.token_ids.is_none())
        .map(|message| message.text.len())
        .sum();
    if bytes < RELEASE_BYTES_MIN {
        work()
    } else {
        py.detach(work)
    }
}

/// A prompt, and what its parts are made of.
#[pyclass(frozen, module = "appliance._core")]
pub struct Assembled {
    #[pyo3(get)]
    token_ids: Py<PyBytes>,
    #[pyo3(get)]
    stretches: Py<PyTuple>,
    #[pyo3(get)]
    part_tokens: Py<PyTuple>,
}

impl Assembled {
    fn new(py: Python<'_>, assembled: &assemble::Assembled<'_>) -> PyResult<Self> {
        let stretches = assembled
            .stretches
            .iter()
            .map(|(namespace, tokens)| (PyBytes::new(py, namespace), *tokens));
        Ok(Self {
            token_ids: pack(py, &assembled.token_ids)?.unbind(),
            stretches: PyTuple::new(py, stretches.collect::<Vec<_>>())?.unbind(),
            part_tokens: PyTuple::new(py, &assembled.part_tokens)?.unbind(),
        })
    }
}

/// A chat format as ids, for formats whose texts depend on neighbours only.
#[pyclass(frozen, module = "appliance._core")]
pub struct ChatPieces {
    tokenizer: Arc<tokenizer::Tokenizer>,
    pieces: pieces::ChatPieces,
}

#[pymethods]
impl ChatPieces {
    #[new]
    #[pyo3(signature = (tokenizer, *, slots, ends, overhead))]
    fn new(
        tokenizer: &Tokenizer,
        slots: Vec<(Option<PyBackedStr>, PyBackedStr, PySlot)>,
        ends: Vec<(PyBackedStr, bool, PyBackedBytes)>,
        overhead: Vec<(PyBackedStr, Count<u32>)>,
    ) -> PyResult<Self> {
        let mut pieces = pieces::ChatPieces::default();
        for (before, own, given) in &slots {
            let before = before.as_deref().map(role).transpose()?;
            pieces.set_slot(before, role(own)?, slot(given)?);
        }
        for (last, header, ids) in &ends {
            pieces.set_end(role(last)?, *header, unpack("ids", ids)?.into_owned());
        }
        for (name, tokens) in &overhead {
            pieces.set_overhead(role(name)?, tokens.0 as usize);
        }
        Ok(Self {
            tokenizer: tokenizer.shared(),
            pieces,
        })
    }

    #[pyo3(signature = (messages, *, public, front, after, holds, history_priority, window))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "converted arguments of a Python call"
    )]
    fn fit(
        &self,
        py: Python<'_>,
        messages: Columns,
        public: &[u8],
        front: Vec<PyPart>,
        after: Vec<PyPart>,
        holds: Vec<usize>,
        history_priority: Count<u32>,
        window: PyWindow,
    ) -> PyResult<(PyKept, Option<Assembled>)> {
        let messages = read(&messages, public)?;
        if front.len() + after.len() > messages.len() {
            return Err(PyValueError::new_err(
                "more messages are named than there are",
            ));
        }
        let asked = Asked {
            parts: &parts(&front, &after),
            front: front.len(),
            holds: &holds,
            history: history_priority.0,
            window: &self::window(&window),
        };
        let fit = || assemble::fit(&self.tokenizer, &self.pieces, &messages, &asked);
        let (found, assembled) = run(py, &messages, fit).map_err(to_python)?;
        let assembled = assembled.map(|assembled| Assembled::new(py, &assembled));
        Ok((kept(found), assembled.transpose()?))
    }

    #[pyo3(signature = (messages, *, public, continues))]
    fn join(
        &self,
        py: Python<'_>,
        messages: Columns,
        public: &[u8],
        continues: bool,
    ) -> PyResult<Option<Assembled>> {
        let messages = read(&messages, public)?;
        let roles = messages.iter().map(|message| message.role);
        let Some(placement) = self.pieces.place(roles, !continues) else {
            return Ok(None);
        };
        join_at(py, &self.tokenizer, &placement, &messages, continues).map(Some)
    }
}

/// Put messages together whose places are given one by one.
#[pyfunction]
#[pyo3(signature = (tokenizer, messages, *, public, slots, after, continues))]
pub fn join_prompt(
    py: Python<'_>,
    tokenizer: &Tokenizer,
    messages: Columns,
    public: &[u8],
    slots: Vec<PySlot>,
    after: &[u8],
    continues: bool,
) -> PyResult<Assembled> {
    let messages = read(&messages, public)?;
    if slots.len() != messages.len() {
        return Err(PyValueError::new_err("every message needs a slot"));
    }
    let slots = slots.iter().map(slot).collect::<PyResult<Vec<_>>>()?;
    let placement = Placement {
        slots: slots.iter().collect(),
        after: &unpack("after", after)?,
    };
    join_at(py, &tokenizer.shared(), &placement, &messages, continues)
}

fn join_at(
    py: Python<'_>,
    tokenizer: &tokenizer::Tokenizer,
    placement: &Placement<'_>,
    messages: &[Message<'_>],
    continues: bool,
) -> PyResult<Assembled> {
    let end = if continues { End::Continue } else { End::Reply };
    let join = || assemble::join(tokenizer, placement, messages, end);
    let assembled = run(py, messages, join).map_err(to_python)?;
    Assembled::new(py, &assembled)
}

/// The cut alone, of a history by role and size, between parts of these sizes.
#[pyfunction]
#[pyo3(signature = (history, *, front, after, tokens, format_tokens, holds, history_priority, window))]
#[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
#[expect(
    clippy::needless_pass_by_value,
    reason = "converted arguments of a Python call"
)]
pub fn cut(
    history: Vec<(PyBackedStr, u32)>,
    front: Vec<PyPart>,
    after: Vec<PyPart>,
    tokens: Vec<u32>,
    format_tokens: u32,
    holds: Vec<usize>,
    history_priority: Count<u32>,
    window: PyWindow,
) -> PyResult<PyKept> {
    if tokens.len() != front.len() + after.len() {
        return Err(PyValueError::new_err("every part needs its tokens"));
    }
    let asked = Asked {
        parts: &parts(&front, &after),
        front: front.len(),
        holds: &holds,
        history: history_priority.0,
        window: &self::window(&window),
    };
    let tokens: Vec<i64> = tokens.into_iter().map(i64::from).collect();
    let history = history
        .iter()
        .map(|(name, tokens)| Ok((role(name)?, i64::from(*tokens))))
        .collect::<PyResult<Vec<_>>>()?;
    assemble::checked_cut(
        history.into_iter(),
        &tokens,
        i64::from(format_tokens),
        &asked,
    )
    .map(kept)
    .map_err(to_python)
}
