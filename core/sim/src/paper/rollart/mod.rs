use crate::paper::Figure;
pub(super) fn figures() -> Vec<Figure> { Vec::new() }
