//! Bytes as text, with the encoding of URLs (RFC 3986 section 2.1): `%XX` is a byte.

/// `bytes` as text: those that are not UTF-8, and `%`, as `%XX`.
pub fn percent_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&chunk.valid().replace('%', "%25"));
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("%{byte:02X}")));
    }
    out
}

/// The bytes of `text`, in which `%XX` is one of them.
///
/// # Errors
/// What is wrong.
pub fn percent_decode(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        match (digit(), digit()) {
            (Some(h), Some(l)) => out.push((h << 4 | l) as u8),
            _ => return Err("% must be followed by two hexadecimal digits; write % itself as %25".into()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_of_bytes_has_a_text() {
        for (bytes, text) in [
            (&b"abc"[..], "abc"),
            ("ä b".as_bytes(), "ä b"),
            (b"se\xf1or/\xff\xfe", "se%F1or/%FF%FE"),
            (b"100% \xe9", "100%25 %E9"),
        ] {
            assert_eq!(percent_encode(bytes), text);
            assert_eq!(percent_decode(text).unwrap(), bytes);
        }
        assert_eq!(percent_decode("%e9%2F").unwrap(), b"\xe9/");
        for text in ["%", "%4", "%zz", "a%+1"] {
            assert!(percent_decode(text).unwrap_err().contains("write % itself as %25"), "{text}");
        }
    }
}
