"""As much of verl's `DataProto` as a loop on it uses, where verl itself is not installed."""

import importlib.util

import numpy as np
import torch

INSTALLED = importlib.util.find_spec("verl") is not None


class Rows:
    def __init__(self, batch, non_tensor_batch):
        self.batch = batch
        self.non_tensor_batch = non_tensor_batch
        self.meta_info = {}

    @staticmethod
    def from_dict(tensors, non_tensors=None):
        return Rows(tensors, non_tensors or {})

    def __len__(self):
        return len(next(iter({**self.non_tensor_batch, **self.batch}.values())))

    def __getitem__(self, rows):
        parts = ({k: v[rows] for k, v in p.items()} for p in (self.batch, self.non_tensor_batch))
        return Rows(*parts)

    def select_idxs(self, rows):
        return self[rows]

    def pop(self, batch_keys):
        for name in batch_keys:
            del self.batch[name]

    def chunk(self, chunks):
        assert len(self) % chunks == 0
        return [self[i::chunks] for i in range(chunks)]

    @staticmethod
    def concat(parts):
        batch, others = (parts[0].batch, parts[0].non_tensor_batch)
        return Rows(
            {k: torch.cat([part.batch[k] for part in parts]) for k in batch},
            {k: np.concatenate([part.non_tensor_batch[k] for part in parts]) for k in others},
        )


def data_proto():
    """verl's class, or what stands for it."""
    if not INSTALLED:
        return Rows
    from verl import DataProto

    return DataProto
