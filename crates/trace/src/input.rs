//! Files that a command reads: refused after their first bytes if they are of another kind, and read no further than a
//! file of that kind can be long.

use std::fs::File;
use std::io::{Read, Seek as _};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::Result as Decoded;
use parquet::file::reader::{ChunkReader, Length};

use crate::error::{Error, Place};

/// Bytes that are looked at first.
const FIRST: u64 = 4096;
/// Longest input that is kept in memory whole: what comes through a pipe, and texts.
pub const MOST: u64 = 128 << 20;

/// A file, open.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// Can be read at any place.
    File(Arc<File>),
    /// All bytes of a pipe or of a device.
    Memory(Bytes),
}

impl Length for Input {
    fn len(&self) -> u64 {
        match self {
            Self::File(file) => Length::len(&**file),
            Self::Memory(bytes) => Length::len(bytes),
        }
    }
}

// One reader for both, so that the decoder is compiled once.
impl ChunkReader for Input {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> Decoded<Self::T> {
        Ok(match self {
            Self::File(file) => Box::new(file.get_read(start)?),
            Self::Memory(bytes) => Box::new(bytes.get_read(start)?),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Decoded<Bytes> {
        match self {
            Self::File(file) => file.get_bytes(start, length),
            Self::Memory(bytes) => bytes.get_bytes(start, length),
        }
    }
}

/// Opens a file whose first bytes `accepts`; else they say what is wrong, and how to mend it. Of a pipe or a device, no
/// more than `most` bytes are read.
pub(crate) fn open(
    path: &Path,
    most: u64,
    accepts: impl FnOnce(&[u8]) -> Result<(), (String, &'static str)>,
) -> Result<Input, Error> {
    let failed = |cause| Error::io("read", path, cause);
    let name = || path.display().to_string();
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.by_ref().take(FIRST).read_to_end(&mut bytes).map_err(failed)?;
    accepts(&bytes).map_err(|(what, fix)| Error::refused(&name(), Place::Byte(0), what, fix))?;
    if file.metadata().map_err(failed)?.is_file() {
        file.rewind().map_err(failed)?;
        return Ok(Input::File(file.into()));
    }
    file.take((most + 1).saturating_sub(bytes.len() as u64)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(too_long(&name(), most));
    }
    Ok(Input::Memory(bytes.into()))
}

fn too_long(name: &str, most: u64) -> Error {
    let what = format!("longer than {} MiB", most >> 20);
    Error::refused(
        name,
        Place::Unknown,
        what,
        "check that it is the right file; a trace can be longer as a file than through a pipe",
    )
}

/// A file that is a text, of at most `most` bytes.
///
/// # Errors
/// It cannot be read, is longer, or is no text. `expected` says what it should be.
pub fn text(path: &Path, most: u64, expected: &'static str) -> Result<String, Error> {
    let is_text = |first: &[u8]| match first.iter().position(|&byte| byte == 0) {
        Some(at) => Err((format!("not text (byte {at} is 0)"), expected)),
        None => Ok(()),
    };
    String::from_utf8(bytes(path, most, is_text)?).map_err(|cause| {
        let what = format!("not text (byte {} is not UTF-8)", cause.utf8_error().valid_up_to());
        Error::refused(&path.display().to_string(), Place::Unknown, what, expected)
    })
}

/// All bytes of a file whose first bytes `accepts`: at most `most`.
///
/// # Errors
/// It cannot be read, is longer, or is not accepted.
pub fn bytes(
    path: &Path,
    most: u64,
    accepts: impl FnOnce(&[u8]) -> Result<(), (String, &'static str)>,
) -> Result<Vec<u8>, Error> {
    match open(path, most, accepts)? {
        Input::Memory(bytes) => Ok(bytes.into()),
        Input::File(file) => {
            let mut bytes = Vec::new();
            file.take(most + 1).read_to_end(&mut bytes).map_err(|cause| Error::io("read", path, cause))?;
            if bytes.len() as u64 > most {
                return Err(too_long(&path.display().to_string(), most));
            }
            Ok(bytes)
        }
    }
}

/// All bytes of a table that begins with `magic`: at most [`MOST`].
///
/// # Errors
/// It cannot be read, is longer, or begins otherwise.
pub fn table(path: &Path, magic: &'static str) -> Result<Vec<u8>, Error> {
    bytes(path, MOST, |first| {
        let wrong = || (format!("no {magic} at its beginning"), "name a file that is such a table");
        first.starts_with(magic.as_bytes()).then_some(()).ok_or_else(wrong)
    })
}
