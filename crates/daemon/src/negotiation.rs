//! Content negotiation (RFC 9110 section 12.5): what a request accepts.

use hyper::{
    HeaderMap,
    header::{ACCEPT, ACCEPT_ENCODING, HeaderName},
};

/// An exposition format, which a scraper selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The text format 0.0.4 of Prometheus, which browsers show.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that `headers` prefer: the text format if both are equal, or none is accepted.
    pub(crate) fn preferred(headers: &HeaderMap) -> Self {
        let open_metrics = quality_of(headers, "application/openmetrics-text", "1.0.0");
        let is_preferred = open_metrics > quality_of(headers, "text/plain", "0.0.4");
        if is_preferred { Self::OpenMetrics } else { Self::Text }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Whether `headers` accept the content coding gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let of = |coding: &str| {
        let mut codings = preferences(headers, ACCEPT_ENCODING);
        codings.find(|c| c.name.eq_ignore_ascii_case(coding)).map(|c| c.quality)
    };
    of("gzip").or_else(|| of("*")).is_some_and(|quality| quality > 0.0)
}

/// An element of a list: a media range or a content coding.
struct Preference<'h> {
    name: &'h str,
    version: Option<&'h str>,
    /// From 0, not acceptable, to 1.
    quality: f32,
}

fn preferences(headers: &HeaderMap, list: HeaderName) -> impl Iterator<Item = Preference<'_>> {
    let values = headers.get_all(list).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|element| {
        let mut parts = element.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let mut preference = Preference { name, version: None, quality: 1.0 };
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim_matches('"');
            if key.eq_ignore_ascii_case("version") {
                preference.version = Some(value);
            } else if key.eq_ignore_ascii_case("q") {
                let valid = value.parse().ok().filter(|quality| (0.0..=1.0).contains(quality));
                preference.quality = valid.unwrap_or(0.0);
            }
        }
        preference
    })
}

/// The quality of a media type: that of the most specific range that includes it, or 0.
fn quality_of(headers: &HeaderMap, media_type: &str, version: &str) -> f32 {
    let specificity = |range: &Preference<'_>| {
        if range.name.eq_ignore_ascii_case(media_type) {
            return range.version.map_or(Some(2), |v| (v == version).then_some(3));
        }
        let of_type = |t: &str| media_type.split('/').next().is_some_and(|m| m.eq_ignore_ascii_case(t));
        match range.name.strip_suffix("/*") {
            Some("*") => Some(0),
            Some(t) if of_type(t) => Some(1),
            _ => None,
        }
    };
    let ranges = preferences(headers, ACCEPT).filter_map(|range| Some((specificity(&range)?, range.quality)));
    ranges.max_by_key(|(specificity, _)| *specificity).map_or(0.0, |(_, quality)| quality)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn the_most_specific_range_decides_on_the_format() {
        use Format::{OpenMetrics, Text};
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        for (accepted, expected) in [
            (prometheus, OpenMetrics),
            ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Text),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", OpenMetrics),
            ("application/openmetrics-text", OpenMetrics),
            ("application/*, text/plain;q=0.5", OpenMetrics),
            ("application/*, application/openmetrics-text;q=0.1, text/*;q=0.5", Text),
            ("application/openmetrics-text;q=0, */*", Text),
            ("application/openmetrics-text;q=nan", Text),
            ("application/openmetrics-text;q=2", Text),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.5", Text),
            ("*/*", Text),
            ("image/png", Text),
            ("", Text),
            (";;=,;q", Text),
            (browser, Text),
        ] {
            assert_eq!(Format::preferred(&headers(ACCEPT, accepted)), expected, "{accepted}");
        }
        assert_eq!(Format::preferred(&HeaderMap::new()), Text);
        let mut lines = headers(ACCEPT, "text/plain;q=0.5");
        lines.append(ACCEPT, HeaderValue::from_static("application/openmetrics-text"));
        assert_eq!(Format::preferred(&lines), OpenMetrics, "a list in two lines");
    }

    #[test]
    fn gzip_is_used_only_where_it_is_accepted() {
        for (accepted, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5, br", true),
            ("*", true),
            ("*;q=0.1, identity", true),
            ("gzip;q=0, *", false),
            ("gzip;q=0.000", false),
            ("identity", false),
            ("br;q=1, gzipped", false),
            ("", false),
        ] {
            assert_eq!(accepts_gzip(&headers(ACCEPT_ENCODING, accepted)), expected, "{accepted}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
