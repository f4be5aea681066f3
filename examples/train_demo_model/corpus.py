"""Corpus, tokenizer and training windows of the demo model.

The corpus is a folder of `*.txt.xz` parts in which each document is followed by a line `<|endoftext|>`, and
`heldout.txt.xz`, which is only ever measured, never trained on.
"""

import lzma
from pathlib import Path

import numpy as np
import sentencepiece as spm

# The token that ends a document stands for the separator's whole line. Its spelling differs from the well-known one on
# purpose: engines make a token of that name a control token, which plain text cannot contain.
END_OF_TEXT = "<|endoftext|>\n"
SEPARATOR = f"\n{END_OF_TEXT}"
HELDOUT = "heldout"
BOS_ID = 1

# Shares of the training windows among the parts: the simple stories, which the model is meant to write, come first.
PART_WEIGHTS = {
    "tinystories": 0.15,
    "tinystories_recased": 0.42,
    "pratham_storybooks": 0.10,
    "asp_storybooks": 0.06,
    "aesop_for_children": 0.02,
    "fairytaleqa": 0.19,
    "grimm_andersen_wilde": 0.06,
}
# The large part of older books teaches the language early and works against over-fitting; its share of all windows
# falls from the first value to the second over the training.
BOOKS_PART = "chilit"
BOOKS_SHARE = (0.40, 0.25)


def read_part(corpus: Path, part: str) -> str:
    """The whole decompressed text of one part."""
    return lzma.decompress((corpus / f"{part}.txt.xz").read_bytes()).decode("utf-8")


def train_tokenizer(corpus: Path, prefix: Path, n_vocab: int) -> None:
    """Train the SentencePiece BPE tokenizer and write `prefix.model`.

    No normalisation and no added space, so that decoding gives back the exact bytes. Line breaks and the document
    separator are user-defined symbols: they are recognised in plain text.
    """
    lines = (line for part in PART_WEIGHTS for line in read_part(corpus, part).split("\n"))
    spm.SentencePieceTrainer.train(
        sentence_iterator=(line for line in lines if line and line != END_OF_TEXT.strip()),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=n_vocab,
        byte_fallback=True,
        character_coverage=0.9999,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        max_sentence_length=1_000_000,
        user_defined_symbols=[END_OF_TEXT, "\n", "\n\n"],
        unk_id=0,
        bos_id=BOS_ID,
        eos_id=-1,
        pad_id=-1,
        num_threads=2,
        minloglevel=1,
    )


def load_tokenizer(path: Path) -> spm.SentencePieceProcessor:
    """Load a trained tokenizer."""
    return spm.SentencePieceProcessor(model_file=str(path))


def encode_cached(corpus: Path, part: str, tokenizer: spm.SentencePieceProcessor, cache: Path) -> np.ndarray:
    """Token ids of one part as one uint16 array, kept in the folder `cache`."""
    path = cache / f"{part}.npy"
    if not path.exists():
        documents = read_part(corpus, part).split(SEPARATOR)
        # The last document's separator leaves an empty string behind.
        texts = [document + SEPARATOR for document in documents if document]
        ids = [token for text in texts for token in tokenizer.encode(text)]
        np.save(path, np.array(ids, dtype=np.uint16))
    return np.load(path)


class WindowSampler:
    """Draws random training windows.

    A window is n_ctx + 1 tokens of the stream of one part, the first replaced by BOS; `start_share` of them begin at
    the start of a document instead, as BOS and then the document: what the model sees when a story begins.
    """

    def __init__(self, streams: dict[str, np.ndarray], end_of_text: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.streams = [streams[part] for part in (*PART_WEIGHTS, BOOKS_PART)]
        self.starts = [_document_starts(stream, end_of_text) for stream in self.streams]
        self.weights = np.array(list(PART_WEIGHTS.values())) / sum(PART_WEIGHTS.values())

    def draw(self, n_windows: int, n_ctx: int, progress: float, start_share: float = 1 / 3) -> np.ndarray:
        """Windows [n_windows, n_ctx + 1], int64, inputs [:, :-1], targets [:, 1:]; progress of the training is 0..1."""
        books = BOOKS_SHARE[0] + (BOOKS_SHARE[1] - BOOKS_SHARE[0]) * progress
        shares = np.append(self.weights * (1 - books), books)
        windows = np.empty((n_windows, n_ctx + 1), dtype=np.int64)
        for row, part in enumerate(self.rng.choice(len(shares), size=n_windows, p=shares)):
            stream, starts = self.streams[part], self.starts[part]
            first = int(self.rng.integers(len(stream) - n_ctx))
            if self.rng.random() < start_share:
                first = int(min(starts[self.rng.integers(len(starts))], len(stream) - n_ctx)) - 1
            windows[row, 1:] = stream[first + 1 : first + 1 + n_ctx]
        windows[:, 0] = BOS_ID
        return windows


def _document_starts(stream: np.ndarray, end_of_text: int) -> np.ndarray:
    """Positions at which documents begin."""
    after = np.flatnonzero(stream == end_of_text) + 1
    return np.concatenate(([0], after[after < len(stream)]))
