//! Rows and figures of the tables.

/// The name by which a process is told what to be, and what the table calls it.
pub struct Row(pub &'static str, pub &'static str);

pub fn header(title: &str, columns: &[&str]) {
    println!("\n## {title}\n\n| | {} |", columns.join(" | "));
    println!("|---|{}", "---:|".repeat(columns.len()));
}

pub fn row(title: &str, cells: &[String]) {
    println!("| {title} | {} |", cells.join(" | "));
}

pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Of figures of rounds, and of the base's in the same rounds: the figure at a quantile, the base's, and the middle half of
/// the ratios of each round. What else the machine does makes every figure worse: a quantile near the good end is of rounds
/// that it left alone.
pub struct Compared {
    pub figure: f64,
    pub base: f64,
    middle: [f64; 2],
}

impl Compared {
    pub fn new(figures: &[f64], base: &[f64], share: f64) -> Self {
        let ratios: Vec<_> = figures.iter().zip(base).map(|(figure, base)| figure / base).collect();
        let middle = [0.25, 0.75].map(|share| quantile(&ratios, share));
        Self { figure: quantile(figures, share), base: quantile(base, share), middle }
    }

    pub fn ratio(&self) -> String {
        format!("{:.2}", self.figure / self.base)
    }

    pub fn middle_half(&self) -> String {
        format!("{:.2}–{:.2}", self.middle[0], self.middle[1])
    }
}

/// With the thousands apart, as the pages write them.
pub fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    format!("{}{}", if value <= -0.5 { "-" } else { "" }, groups.join(" "))
}
