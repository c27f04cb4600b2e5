#!/bin/bash
# The settings of BigScience's first 104B runs, typed anew from the launch notes.
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 64 --hidden-size 11600 --ffn-hidden-size 46400 --num-attention-heads 80 \
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 2048 \
  --lr 6.0e-5 --min-lr 6.0e-6 --lr-warmup-samples 216320 --lr-decay-style cosine --train-iters 150000 \
  --adam-beta1 0.9 --adam-beta2 0.999 --adam-eps 1e-8 --weight-decay 0.1 --clip-grad 1.0 \
  --init-method-std 0.02 --fp16 --save-interval 300
