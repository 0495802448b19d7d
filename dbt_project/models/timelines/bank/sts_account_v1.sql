{#- Written by `lakehouse scaffold`, its own while unchanged: 058d7d5ac2a0d2ec -#}
{{ timeline(source_model='sts_account', src_pk='hk_account', src_hashdiff='hd_status') }}
