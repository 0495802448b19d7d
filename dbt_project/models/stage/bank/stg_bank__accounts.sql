{#- Written by `lakehouse scaffold`, its own while unchanged: b1f6a3dd733b2b09 -#}
{{ cdc_vault.stage(
  source_model='parsed_bank__accounts',
  derived_columns={
    'account_id': 'id',
  },
  hashed_columns={
    'hk_account': ['id'],
    'hk_user': ['user_id'],
    'hk_account_user': ['id', 'user_id'],
    'hd_account_details': {'is_hashdiff': true, 'columns': ['currency', 'balance', 'created_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
