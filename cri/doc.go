package cri
