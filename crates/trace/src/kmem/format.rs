//! The text in which a kernel describes the layout of an event: `events/GROUP/NAME/format`.
//!
//! ```text
//! name: mm_page_free
//! ID: 655
//! format:
//!         field:int common_pid;   offset:4;       size:4; signed:1;
//!
//!         field:unsigned long pfn;        offset:8;       size:8; signed:0;
//!
//! print fmt: "page=%p pfn=0x%lx order=%d", …
//! ```

/// Where a field lies in an event's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Bytes from the start of the event.
    pub(crate) offset: usize,
    /// Length in bytes.
    pub(crate) size: usize,
    /// Whether an integer here has a sign.
    pub(crate) signed: bool,
}

/// Layout of one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Name without its group.
    pub(crate) name: String,
    /// Number by which events of this kind are marked.
    pub(crate) id: u16,
    fields: Vec<(String, Field)>,
    /// How to print each of the fields.
    shapes: Vec<Shape>,
}

/// What a field holds, as far as printing it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Integer,
    /// Characters up to a zero.
    Text,
    /// Offset (low 16 bits) and length (high 16 bits) of characters elsewhere in the event.
    TextElsewhere,
    Other,
}

impl Format {
    /// Parses the text of a `format` file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (mut name, mut id, mut fields, mut shapes) = (None, None, Vec::new(), Vec::new());
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("name:") {
                name = Some(rest.trim().to_owned());
            } else if let Some(rest) = line.strip_prefix("ID:") {
                id = rest.trim().parse().ok();
            } else if line.starts_with("field:") {
                let field = field(line)?;
                shapes.push(shape(line, field.1));
                fields.push(field);
            } else if line.starts_with("print fmt:") {
                break;
            }
        }
        let name = name.ok_or("a format without a name")?;
        let id = id.ok_or_else(|| format!("the format of {name} has no ID"))?;
        Ok(Self { name, id, fields, shapes })
    }

    /// The event's own fields as `NAME=VALUE`, with spaces between them: integers in decimal, characters as they
    /// are but for spaces and controls. Fields that are neither are left out, and so is what the event ends
    /// before.
    pub(crate) fn describe(&self, event: &[u8]) -> String {
        let mut text = String::new();
        for ((name, field), shape) in self.fields.iter().zip(&self.shapes) {
            // The fields before the event's own are the same for all.
            if name.starts_with("common_") {
                continue;
            }
            let words = |characters: &[u8]| {
                let plain = |c: char| if c.is_control() || c == ' ' { '_' } else { c };
                String::from_utf8_lossy(characters).chars().map(plain).collect::<String>()
            };
            let value = match shape {
                Shape::Integer if field.signed => {
                    field.integer(event).map(|number| number.cast_signed().to_string())
                }
                Shape::Integer => field.integer(event).map(|number| number.to_string()),
                Shape::Text => field.text(event).map(words),
                Shape::TextElsewhere => field.integer(event).and_then(|place| {
                    let (offset, size) = (place as usize & 0xffff, place as usize >> 16 & 0xffff);
                    Field { offset, size, signed: false }.text(event).map(words)
                }),
                Shape::Other => None,
            };
            if let Some(value) = value {
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(&format!("{name}={value}"));
            }
        }
        text
    }

    pub(crate) fn find(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(known, _)| known == name).map(|&(_, field)| field)
    }

    /// The field of that name, which every kernel that this crate can read has.
    pub(crate) fn need(&self, name: &str) -> Result<Field, String> {
        self.find(name).ok_or_else(|| format!("event {} has no field {name}", self.name))
    }
}

fn shape(line: &str, field: Field) -> Shape {
    let declaration = line.split(';').next().unwrap_or_default();
    if declaration.contains("__data_loc") {
        if declaration.contains("char") { Shape::TextElsewhere } else { Shape::Other }
    } else if declaration.contains('[') {
        if declaration.contains("char") { Shape::Text } else { Shape::Other }
    } else if matches!(field.size, 1 | 2 | 4 | 8) {
        Shape::Integer
    } else {
        Shape::Other
    }
}

/// Parses `field:TYPE NAME; offset:N; size:N; signed:N;`, where `signed` may be missing.
pub(crate) fn field(line: &str) -> Result<(String, Field), String> {
    let bad = || format!("cannot read the format line {line:?}");
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next().and_then(|part| part.strip_prefix("field:")).ok_or_else(bad)?;
    let (mut offset, mut size, mut signed) = (None, None, false);
    for (key, value) in parts.filter_map(|part| part.split_once(':')) {
        match key {
            "offset" => offset = value.parse().ok(),
            "size" => size = value.parse().ok(),
            "signed" => signed = value == "1",
            _ => {}
        }
    }
    // The name is the last word; an array's length follows it directly.
    let word = declaration.rsplit([' ', '*']).next().unwrap_or_default();
    let name = word.split('[').next().unwrap_or_default();
    match (offset, size) {
        (Some(offset), Some(size)) if !name.is_empty() => {
            Ok((name.to_owned(), Field { offset, size, signed }))
        }
        _ => Err(bad()),
    }
}

impl Field {
    /// The integer in this field, in this machine's byte order; a negative one comes as its 64-bit two's complement.
    /// `None` if `event` ends before it or it is no integer.
    pub(crate) fn integer(self, event: &[u8]) -> Option<u64> {
        let raw = self.bytes(event)?;
        let value = match raw.len() {
            1 => raw[0].into(),
            2 => u16::from_ne_bytes(raw.try_into().ok()?).into(),
            4 => u32::from_ne_bytes(raw.try_into().ok()?).into(),
            8 => u64::from_ne_bytes(raw.try_into().ok()?),
            _ => return None,
        };
        let unused = 64 - 8 * raw.len();
        Some(if self.signed { ((value << unused).cast_signed() >> unused).cast_unsigned() } else { value })
    }

    /// The text in this field, up to its zero. `None` if `event` ends before it.
    pub(crate) fn text(self, event: &[u8]) -> Option<&[u8]> {
        self.bytes(event)?.split(|&byte| byte == 0).next()
    }

    fn bytes(self, event: &[u8]) -> Option<&[u8]> {
        event.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

#[cfg(test)]
mod tests;
